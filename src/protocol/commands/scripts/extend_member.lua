-- Compare and extend, or shorten, as EXTEND. Never adds a member (rule R11).
--
-- ARGV[1]  the token
-- ARGV[2]  its member, as far as that is known
-- ARGV[3]  the new ttl in ms
-- ARGV[4]  1: shorten; or missing
--
-- Returns 1 + the slot (rule R48); 1 for a reader. If the token holds nothing: -1, -2 or 0 as `instead`.

local member = find(ARGV[1], ARGV[2])
if not member then
  return instead(ARGV[2])
end
local failed
local last, new = redis.call('ZSCORE', name, member) + 0, now + ARGV[3]
if ARGV[4] then
  local left = string.sub(member, 1, 12) .. given_up(string.sub(member, 13))
  if last > new or left ~= member then
    failed = put(left, math.min(last, new) - now)
  end
  if left ~= member and not failed then
    redis.call('ZREM', name, member)
    failed = set_end()
  end
elseif last < new then
  failed = put(member, ARGV[3])
end
return failed or string.sub(member, 10, 12) + 1
