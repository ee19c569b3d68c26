-- Locks on one or more names: how their scripts begin. The names come first among the keys.

-- The value of a name that the token holds, or false. Data of another type is no lock; any other error, such as that of a right
-- that is missing for now, proves nothing, and fails the script.
local function holds(name)
  local value = redis.pcall('GET', name)
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    value = redis.call('GET', name)
  end
  return type(value) == 'string' and string.sub(value, 1, 20) == ARGV[1] and value
end
-- What is there instead: -1 another holder, -2 nothing.
local function instead(name)
  return redis.call('EXISTS', name) == 1 and -1 or -2
end
