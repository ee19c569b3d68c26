-- Permits, readers, writers and locks on several names: how they notify a waiter. (Queue and mark are hints, as in QUEUE.)

local try, queue, me = redis.pcall, KEYS[2], ARGV[3]
-- The first waiter for a name that listens; but not on this channel. Returns 2, or 1 if there is none.
local function tell(queue, name, but)
  for _ = 1, queue and 99 or 0 do
    local waiter = try('ZPOPMIN', queue)[1]
    if not waiter then
      break
    end
    -- Its label is behind a space.
    waiter = string.match(waiter, '^[^ ]*')
    local heard = waiter == but and 0 or try('PUBLISH', waiter, name)
    if heard ~= 0 then
      return type(heard) == 'number' and 2 or 1
    end
  end
  return 1
end
