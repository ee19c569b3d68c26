-- Compare and extend. Never adds a member (rule R11), and never shortens its time (rule R12).
--
-- ARGV[1]  the token
-- ARGV[2]  its member, as far as that is known
-- ARGV[3]  the new ttl in ms
--
-- Returns 1 + the slot (rule R48); 1 for a reader; 0 if the token holds nothing.

local member = find(ARGV[1], ARGV[2])
if not member then
  return 0
end
local failed
if redis.call('ZSCORE', name, member) + 0 < now + ARGV[3] then
  failed = put(member, ARGV[3])
end
return failed or string.sub(member, 10, 12) + 1
