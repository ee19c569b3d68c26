-- Compare and count (rule R20): one number, above all earlier ones of any of the names.
--
-- KEYS     the names, and then the counter of each; kept for a day
-- ARGV[1]  the token
-- ARGV[2]  the smallest number that may be returned
--
-- Returns -1 or -2 as EXTEND_NAMES if the token does not hold all of them. Otherwise a number as FENCE.

local count, time = #KEYS / 2, redis.call('TIME')
local n = math.max(tonumber(ARGV[2]), time[1] * 1000000 + time[2] - time[2] % 100000)
for i = 1, count do
  if not holds(KEYS[i]) then
    return instead(KEYS[i])
  end
  local next = (redis.call('GET', KEYS[count + i]) or 0) + 1
  -- A counter that is "nan" is not less, and nothing is less than it.
  if n == n and not (next <= n) then
    n = next
  end
end
if not (n <= 9007199254740991) then
  return redis.error_reply('ERR the fencing counter is out of range')
end
for i = 1, count do
  redis.call('SET', KEYS[count + i], string.format('%.0f', n), 'PX', 86400000)
end
return n
