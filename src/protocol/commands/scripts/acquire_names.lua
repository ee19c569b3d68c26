-- Acquire a lock on all of these names, or on none.
--
-- KEYS     the names; if the waiter waits, then the queue of each
-- ARGV[1]  its value
-- ARGV[2]  the ttl in ms
-- ARGV[7]  optional, for each name: the token of a claim, a lock of the caller's own, which the new lock takes over
--
-- Returns 1. Otherwise, of the first name that is held, three words as lock_info: for how many ms; its holder, or six
-- digits that differ where the readers differ (rule R54); and whether the waiter is in the queue of that name, with
-- the number of the name, from 0 on. Where a name is in other use: -2 read locks, -3 permits, -4 other data.

local count = me == '' and #KEYS or #KEYS / 2
-- It waits for one name. A message about another one goes on to the next waiter there, which may be another thread of this
-- process.
local function denied(at, hash)
  for i = count + 1, #KEYS do
    if i ~= count + at and try('EXISTS', KEYS[i - count]) == 0 then
      tell(KEYS[i], KEYS[i - count])
    end
  end
  queue = KEYS[count + at]
  return string.format('%.0f %s', redis.call('PTTL', KEYS[at]), hash) .. join() .. at - 1
end
for at, name in ipairs({unpack(KEYS, 1, count)}) do
  local kind = redis.call('TYPE', name).ok
  if kind == 'string' then
    local token = string.sub(redis.call('GET', name), 1, 20)
    if token == '' or token ~= ARGV[6 + at] then
      return denied(at, string.sub(redis.sha1hex(token), 1, 6))
    end
  elseif kind ~= 'none' then
    local head = kind == 'zset' and string.match(redis.call('ZRANGE', name, 0, 0)[1], '^redlock:([rs])%d%d%d')
    if head == 'r' then
      return denied(at, digits(redis.call('ZRANGE', name, 0, -1)))
    end
    return head and -3 or -4
  end
end
for at = 1, count do
  redis.call('SET', KEYS[at], ARGV[1], 'PX', ARGV[2])
  if me ~= '' then
    try('ZREM', KEYS[count + at], me)
  end
end
return 1
