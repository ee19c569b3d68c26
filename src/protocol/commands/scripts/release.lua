-- Compare and delete.
--
-- KEYS[1]  the lock: the holder's token (20 bytes), and what is behind it
-- ARGV[1]  the token
--
-- Returns 1 if the lock has been deleted. If the token does not hold it: -1 another has it, -2 the key is gone.

local value = redis.call('GET', KEYS[1])
if string.sub(value or '', 1, 20) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return value and -1 or -2
