-- Compare and extend. Never creates a key (rule R11), and never shortens its time (rule R12).
--
-- KEYS[1]  the lock
-- ARGV[1]  the token
-- ARGV[2]  the new ttl in ms
--
-- Returns 1 if the token holds the lock, else 0.

if string.sub(redis.call('GET', KEYS[1]) or '', 1, 20) ~= ARGV[1] then
  return 0
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
