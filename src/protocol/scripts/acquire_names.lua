-- Acquire a lock on all of these names, or on none.
--
-- KEYS     the names
-- ARGV[1]  token, and perhaps a label
-- ARGV[2]  the ttl in ms
--
-- Returns 1. Otherwise, of the first name that is held, three words as lock_info: for how many ms, its holder, and "-". Where
-- a name is in other use: -2 read locks, -3 permits, -4 other data.

for _, name in ipairs(KEYS) do
  local kind = redis.call('TYPE', name).ok
  if kind == 'string' then
    local value = redis.call('GET', name)
    local hash = string.sub(redis.sha1hex(string.sub(value, 1, 20)), 1, 6)
    return string.format('%.0f %s -', redis.call('PTTL', name), hash)
  end
  if kind ~= 'none' then
    local head = kind == 'zset' and string.match(redis.call('ZRANGE', name, 0, 0)[1], '^redlock:([rs])%d%d%d')
    if head == 'r' then
      return string.format('%.0f 000000 -', redis.call('PTTL', name))
    end
    return head and -3 or -4
  end
end
for _, name in ipairs(KEYS) do
  redis.call('SET', name, ARGV[1], 'PX', ARGV[2])
end
return 1
