-- Compare and extend, or shorten: all of the names, or none. As EXTEND.
--
-- KEYS     the names
-- ARGV[1]  the token
-- ARGV[2]  the new ttl in ms
-- ARGV[3]  1: shorten; or missing
--
-- Returns 1 if the token holds all of them; else, of the first that it does not hold, -1 or -2 as RELEASE.

local values = {}
for i, name in ipairs(KEYS) do
  values[i] = holds(name)
  if not values[i] then
    return instead(name)
  end
end
local ttl = tonumber(ARGV[2])
for i, name in ipairs(KEYS) do
  local left = redis.call('PTTL', name)
  if ARGV[3] and (left < 0 or left > ttl) or not ARGV[3] and left < ttl then
    redis.call('PEXPIRE', name, ARGV[2])
    left = ttl
  end
  if ARGV[3] then
    give_up(name, left)
  else
    go_on(name, values[i], left)
  end
end
return 1
