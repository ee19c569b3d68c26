-- Set the names that a majority has and that are free here (rule R11b). The answer is no vote.
--
-- KEYS     the names
-- ARGV[1]  the token
-- ARGV[2]  its value
-- ARGV[3]  the ttl in ms
--
-- Returns 1 if the token holds all of them now, else 0.

for _, name in ipairs(KEYS) do
  if redis.call('EXISTS', name) == 1 and not holds(name) then
    return 0
  end
end
for _, name in ipairs(KEYS) do
  redis.call('SET', name, ARGV[2], 'NX', 'PX', ARGV[3])
end
return 1
