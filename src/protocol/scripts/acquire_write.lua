-- Acquire a write lock, which is a plain lock, or leave a mark that keeps out readers which come later (rule R50).
--
-- KEYS[2]  optional: the mark
-- ARGV[1]  token, and perhaps a label
-- ARGV[2]  the ttl in ms
-- ARGV[3]  for how many ms the writer has waited
-- ARGV[4]  the writer, in the mark
-- ARGV[5]  for how many ms the mark is kept; 0: the writer does not wait
--
-- Returns 1; or three words as lock_info: for how many ms it is held, six digits that differ where the holders differ (rule
-- R54), and "-". Where the name is in other use: -3 permits, -4 other data.

if found == 's' or found ~= 'none' and found ~= 'r' and found ~= 'string' then
  return found == 's' and -3 or -4
end
-- Also where the last reader's time was over just now.
if redis.call('SET', name, ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
if KEYS[2] and ARGV[5] ~= '0' then
  local mark, since = redis.pcall('GET', KEYS[2]), now - ARGV[3]
  local older = type(mark) == 'string' and tonumber(string.match(mark, '^(%d+) ') or nil)
  -- A foreign value is left alone: it may be another lock.
  if not mark or older and (older > since or string.match(mark, ' (.*)$') == ARGV[4]) then
    redis.pcall('SET', KEYS[2], string.format('%.0f %s', since, ARGV[4]), 'PX', ARGV[5])
  end
end
local left, hash = redis.call('PTTL', name)
if found == 'string' then
  hash = string.sub(redis.sha1hex(string.sub(redis.call('GET', name), 1, 20)), 1, 6)
else
  local all = members()
  local sum = #all
  for i = 1, math.min(#all, 64) do
    local a, b, c = string.byte(all[i], 13, 15)
    sum = (sum + (a or 0) * 65536 + (b or 0) * 256 + (c or 0)) % 16777216
  end
  hash = string.format('%06x', sum)
end
return string.format('%.0f %s -', left, hash)
