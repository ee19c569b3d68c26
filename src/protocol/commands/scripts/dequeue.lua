-- Leave the queue. If the lock is free, pass the notification on to the first waiter that listens.
--
-- KEYS[1]  the lock
-- KEYS[2]  the queue
-- KEYS[3]  the reservation
-- ARGV[1]  the waiter that leaves, as in the queue
-- ARGV[2]  1 if that waiter is fair
-- ARGV[3]  for how many ms the lock is reserved for the notified waiter, if it was reserved for the one that leaves, or
--          if the waiter that leaves is fair
--
-- Returns 2 if a waiter has been notified, 1 if none listens, 0 if there is nothing to pass on.

local try, lock, me = redis.pcall, KEYS[1], ARGV[1]
local queue, turn, channel = KEYS[2], KEYS[3], string.match(me, '^[^ ]*')
try('ZREM', queue, me)
local owner = try('GET', turn)
if owner == channel then
  try('DEL', turn)
elseif type(owner) == 'string' and string.find(owner, '^[^%z]*redlock:%x+$') then
  return 0
end
if try('EXISTS', lock) ~= 0 then
  return 0
end
for i = 1, 99 do
  local waiter = try('ZPOPMIN', queue)[1]
  if not waiter then
    return 1
  end
  waiter = string.match(waiter, '^[^ ]*')
  local n = try('PUBLISH', waiter, lock)
  if n ~= 0 then
    if type(n) ~= 'number' then
      return 1
    end
    if owner == channel or ARGV[2] == '1' then
      try('SET', turn, waiter, 'NX', 'PX', ARGV[3])
    end
    return 2
  end
end
return 1
