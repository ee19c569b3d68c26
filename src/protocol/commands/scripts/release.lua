-- Compare and delete.
--
-- KEYS[1]  the lock: the holder's token (20 bytes), and perhaps a label
-- ARGV[1]  the token
--
-- Returns 1 if the lock has been deleted, 0 if the token does not hold it.

if string.sub(redis.call('GET', KEYS[1]) or '', 1, 20) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
