-- Compare and delete, and notify the first waiter that listens.
--
-- KEYS[1]  the lock
-- KEYS[2]  the queue; may be missing
-- KEYS[3]  the reservation: with a number in ARGV[2]
-- ARGV[1]  the token
-- ARGV[2]  optional. A number of ms: the lock is reserved for the notified waiter for this time (fair locks).
--          A channel: that waiter is not notified.
--
-- Returns 1 if the lock has been deleted, 2 if a waiter has been notified, too. If the token does not hold it, -1 or -2 as RELEASE.
--
-- The queue and the reservation are hints: with them pcall is used, so that an error (an ACL, data of
-- another type) does not fail the release.

local value = redis.call('GET', KEYS[1])
if string.sub(value or '', 1, 20) ~= ARGV[1] then
  return value and -1 or -2
end
redis.call('DEL', KEYS[1])
local try, option = redis.pcall, ARGV[2]
for i = 1, 99 do
  local waiter = try('ZPOPMIN', KEYS[2])[1]
  if not waiter then
    return 1
  end
  -- The label of the waiter is behind a space.
  waiter = string.match(waiter, '^[^ ]*')
  -- How many connections have received it. With none, the waiter has gone: the next one is notified.
  local n = waiter == option and 0 or try('PUBLISH', waiter, KEYS[1])
  if n ~= 0 then
    if type(n) ~= 'number' then
      return 1
    end
    if tonumber(option) then
      local turn = KEYS[3]
      local owner = try('GET', turn)
      -- A foreign value is left alone: it may be another lock.
      if type(owner) == 'string' and string.find(owner, '^[^%z]*redlock:%x+$') then
        try('DEL', turn)
      end
      try('SET', turn, waiter, 'NX', 'PX', option)
    end
    return 2
  end
end
return 1
