-- Acquire a read lock (rule R49), unless a writer has it, or has waited for longer (rule R50).
--
-- KEYS[2]  optional: the queue
-- KEYS[3]  optional: the mark: since when the writer that has waited longest waits, by this server's clock, which it is,
--          and its channel
-- ARGV[1]  its value
-- ARGV[2]  the ttl in ms
--
-- Returns 1; or three words as lock_info, with the time left of the writer, or of the mark ("-" in the place of a holder).
-- Where the name is in other use: -3 permits, -4 other data.

if found == 'string' then
  local value = redis.call('GET', name)
  local hash = string.sub(redis.sha1hex(string.sub(value, 1, 20)), 1, 6)
  return string.format('%.0f %s', redis.call('PTTL', name), hash) .. join()
end
if found ~= 'none' and found ~= 'r' then
  return found == 's' and -3 or -4
end
local mark = KEYS[3] and try('GET', KEYS[3])
local since, writer = string.match(type(mark) == 'string' and mark or '', '^(%d+) %x+ (.+)$')
if since and since + 0 < now - ARGV[5] then
  -- The lock may be kept for a writer that has not been told that it is free, or has died (rule R51).
  if #members() > 0 or try('PUBLISH', writer, name) ~= 0 then
    return string.format('%.0f -', math.max(redis.call('PTTL', KEYS[3]), 0)) .. join()
  end
  try('DEL', KEYS[3])
end
try_release()
local failed = put('redlock:r000' .. ARGV[1], ARGV[2])
if not failed and queue then
  -- There is room for other readers, too (rule R51).
  try('ZREM', queue, me)
  tell(queue, name)
end
return failed or 1
