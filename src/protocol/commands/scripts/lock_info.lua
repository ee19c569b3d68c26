-- Not acquired: the lock's remaining ttl, and six digits of the SHA-1 of its token, which distinguish one holder from
-- the next; at the end its label, if it has one. A key that is no lock: -1 if it has no ttl, "-2 -" if it has another
-- type. "-1 -" if this user may not ask.

local value, left = try('GET', lock), try('PTTL', lock)
if type(value) == 'table' and string.sub(value.err, 1, 9) == 'WRONGTYPE' then
  return '-2 -' .. queued
end
if type(value) ~= 'string' or type(left) ~= 'number' then
  return '-1 -' .. queued
end
local label = ''
-- Behind the token are a mark of 9 bytes and a time of 5.
if string.sub(value, 21, 29) == '\0redlock:' and #value > 34 then
  -- One byte more than the longest, so that what is longer is not taken for a label.
  label = ' ' .. string.sub(value, 35, 99)
end
return left .. ' ' .. string.sub(redis.sha1hex(string.sub(value, 1, 20)), 1, 6) .. queued .. label
