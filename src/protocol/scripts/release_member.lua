-- Compare and remove.
--
-- ARGV[1]  the token
-- ARGV[2]  its member, as far as that is known
--
-- Returns 1 if it was removed, 0 if the token holds nothing.

local member = find(ARGV[1], ARGV[2])
if not member then
  return 0
end
redis.call('ZREM', name, member)
set_end()
return 1
