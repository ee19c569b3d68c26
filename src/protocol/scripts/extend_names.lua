-- Compare and extend: all of the names, or none. Never creates a key (rule R11), and never shortens its time (rule R12).
--
-- KEYS     the names
-- ARGV[1]  the token
-- ARGV[2]  the new ttl in ms
--
-- Returns 1 if the token holds all of them, else 0.

for _, name in ipairs(KEYS) do
  if not holds(name) then
    return 0
  end
end
for _, name in ipairs(KEYS) do
  if redis.call('PTTL', name) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', name, ARGV[2])
  end
end
return 1
