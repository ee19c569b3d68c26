-- The value of a lock that its holder leaves for a time: the first bit of its time is set, for people. A value that has no time
-- stays as it is.

local function given_up(value)
  if string.sub(value, 21, 29) ~= '\0redlock:' or #value < 34 then
    return value
  end
  return string.sub(value, 1, 29) .. string.char(string.byte(value, 30) % 128 + 128) .. string.sub(value, 31)
end
-- Set the key of a lock to that, for this number of ms. It is a hint: without a right to SET, or memory, there is none.
local function give_up(key, ttl)
  local value = redis.pcall('GET', key)
  if type(value) == 'string' then
    redis.pcall('SET', key, given_up(value), 'XX', 'PX', string.format('%.0f', ttl))
  end
end
