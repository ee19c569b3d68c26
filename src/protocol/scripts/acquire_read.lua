-- Acquire a read lock (rule R49), unless a writer has it, or has waited for longer (rule R50).
--
-- KEYS[2]  optional: the mark, the writer that has waited longest, and since when by this server's clock
-- ARGV[1]  token, and perhaps a label
-- ARGV[2]  the ttl in ms
-- ARGV[3]  for how many ms the reader has waited
--
-- Returns 1; or three words as lock_info, with the time left of the writer, or of the mark ("-" in the place of a holder).
-- Where the name is in other use: -3 permits, -4 other data.

if found == 'string' then
  local value = redis.call('GET', name)
  local hash = string.sub(redis.sha1hex(string.sub(value, 1, 20)), 1, 6)
  return string.format('%.0f %s -', redis.call('PTTL', name), hash)
end
if found ~= 'none' and found ~= 'r' then
  return found == 's' and -3 or -4
end
local mark = KEYS[2] and redis.pcall('GET', KEYS[2])
local since = type(mark) == 'string' and tonumber(string.match(mark, '^(%d+) ') or nil)
if since and since < now - ARGV[3] then
  return string.format('%.0f - -', math.max(redis.call('PTTL', KEYS[2]), 0))
end
try_release()
return put('redlock:r000' .. ARGV[1], ARGV[2]) or 1
