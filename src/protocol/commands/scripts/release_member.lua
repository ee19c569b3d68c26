-- Compare and remove, and notify a waiter if there is room for it.
--
-- KEYS[2]  the queue; may be missing
-- ARGV[1]  the token
-- ARGV[2]  its member, as far as that is known
-- ARGV[3]  with a queue: optional, a channel that is not notified. Without: 1: this member, and no other of the token, which
--          may have its slot here by now; or missing
--
-- Returns 1 if it was removed, 2 if a waiter has been notified, too. If the token holds nothing: -1, -2 or 0 as `instead`.

local member = find(ARGV[1], ARGV[2])
if not member or not queue and me and member ~= ARGV[2] then
  return instead(ARGV[2])
end
-- A server whose slot is on its way refuses to look at a key once its last member is removed.
local frees = found == 's' or #members() == 1
try_set_end()
redis.call('ZREM', name, member)
set_end()
return frees and tell(queue, name, me) or 1
