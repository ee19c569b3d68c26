-- Compare and extend; or compare and shorten (rule R55), which notes that the holder has given the lock up, until it is extended.
-- Never creates a key (rule R11). Extending never shortens its time (rule R12), and shortening never extends it.
--
-- KEYS[1]  the lock
-- ARGV[1]  the token
-- ARGV[2]  the new ttl in ms
-- ARGV[3]  1: shorten; or missing
--
-- Returns 1 if the token holds the lock; else -1 or -2 as RELEASE.

local value = redis.call('GET', KEYS[1])
if string.sub(value or '', 1, 20) ~= ARGV[1] then
  return value and -1 or -2
end
local left, ttl = redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
-- Without an end it is -1.
if ARGV[3] and (left < 0 or left > ttl) or not ARGV[3] and left < ttl then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  left = ttl
end
if ARGV[3] then
  give_up(KEYS[1], left)
else
  go_on(KEYS[1], value, left)
end
return 1
