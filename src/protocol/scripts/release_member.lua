-- Compare and remove.
--
-- ARGV[1]  the token
-- ARGV[2]  its member, as far as that is known
-- ARGV[3]  1: this one, and no other of the token, which may have its slot here by now. Else missing
--
-- Returns 1 if it was removed, 0 if the token holds nothing.

local member = find(ARGV[1], ARGV[2])
if not member or ARGV[3] and member ~= ARGV[2] then
  return 0
end
redis.call('ZREM', name, member)
set_end()
return 1
