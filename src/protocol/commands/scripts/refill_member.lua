-- Add a holder that a majority has (rule R11b), if nothing is in its way. Its permit is in another slot here only by
-- accident: that one is given up (rule R48). The answer is no vote.
--
-- ARGV[1]  the token
-- ARGV[2]  its member
-- ARGV[3]  the ttl in ms
--
-- Returns 1 if it has its member now, else 0.

local wanted = head(ARGV[2])
if found ~= 'none' and found ~= string.sub(wanted, 1, 1) then
  return 0
end
local member = find(ARGV[1], ARGV[2])
if member and head(member) ~= wanted then
  try_set_end()
  redis.call('ZREM', name, member)
  set_end()
  member = nil
end
if not member then
  for _, other in ipairs(members()) do
    if found == 's' and head(other) == wanted then
      return 0
    end
  end
  member = ARGV[2]
end
local last = redis.call('ZSCORE', name, member)
if last and last + 0 >= now + ARGV[3] and last + 0 < 2 ^ 53 then
  return 1
end
return put(member, ARGV[3], last) or 1
