-- Compare and mark (rule R80): the work of this lock is done for a time.
--
-- KEYS[1]  the lock
-- KEYS[2]  the mark
-- ARGV[1]  the token
-- ARGV[2]  the mark's value
-- ARGV[3]  for how many ms it is kept
--
-- Returns 1 if the work is marked as done. If the token does not hold the lock: -1 another has it, -2 the key is gone.
-- Other data in the place of the mark is left alone.

local value = redis.call('GET', KEYS[1])
if string.sub(value or '', 1, 20) ~= ARGV[1] then
  return value and -1 or -2
end
local mark = redis.call('GET', KEYS[2])
if mark and not string.find(mark, '^redlock:done ') then
  return redis.error_reply('ERR the key of the mark has other data')
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return 1
