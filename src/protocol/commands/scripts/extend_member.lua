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
local other = string.sub(member, 1, 12) .. marked(string.sub(member, 13), ARGV[4] and 128 or 0)
-- An end that was set by hand may be no time: no key ends with it, so it counts as none.
local score = (ARGV[4] or last >= 2 ^ 53) and math.min(last, new) or math.max(last, new)
if score ~= last or other ~= member then
  failed = put(other, score - now, other == member and last)
end
if other ~= member and not failed then
  redis.call('ZREM', name, member)
  failed = set_end()
end
return failed or string.sub(member, 10, 12) + 1
