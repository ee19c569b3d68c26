-- Compare and count (rule R20): how this begins. It ends as FENCE.
--
-- KEYS[2]  the counter; kept for a day
-- ARGV[1]  the token
-- ARGV[2]  the smallest number that may be returned
-- ARGV[3]  its member, as far as that is known

if not find(ARGV[1], ARGV[3]) then
  return instead(ARGV[3])
end
