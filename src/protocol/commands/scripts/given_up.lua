-- The value of a lock that its holder leaves for a time: the first bit of its time is set (mark: 128), for people. Its holder may go
-- on with it, in another process: then it is not (0). A value that has no time stays as it is.

local function marked(value, mark)
  if string.sub(value, 21, 29) ~= '\0redlock:' or #value < 34 then
    return value
  end
  return string.sub(value, 1, 29) .. string.char(string.byte(value, 30) % 128 + mark) .. string.sub(value, 31)
end
-- Set the key of a lock to that, for this number of ms. It is a hint: without a right to SET, or memory, there is none.
local function give_up(key, ttl)
  local value = redis.pcall('GET', key)
  if type(value) == 'string' then
    redis.pcall('SET', key, marked(value, 128), 'XX', 'PX', string.format('%.0f', ttl))
  end
end
-- The same for a lock that is extended, with the value that was read. Nothing is written if it was not left.
local function go_on(key, value, ttl)
  if (string.byte(value, 30) or 0) > 127 then
    redis.pcall('SET', key, marked(value, 0), 'XX', 'PX', string.format('%.0f', ttl))
  end
end
