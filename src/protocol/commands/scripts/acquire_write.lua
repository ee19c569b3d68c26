-- Acquire a write lock, which is a plain lock, or leave a mark that keeps out readers which come later (rule R50).
--
-- KEYS[2]  optional: the queue
-- KEYS[3]  optional: the mark
-- ARGV[1]  its value
-- ARGV[2]  the ttl in ms
-- ARGV[7]  the writer, in the mark
-- ARGV[8]  for how many ms the mark is kept, if the writer is in the queue; 0: it does not wait
--
-- Returns 1; or three words as lock_info: for how many ms it is held, six digits that differ where the holders differ (rule
-- R54), and whether the waiter is in the queue. Where the name is in other use: -3 permits, -4 other data.

if found == 's' or found ~= 'none' and found ~= 'r' and found ~= 'string' then
  return found == 's' and -3 or -4
end
-- Also where the last reader's time was over just now.
if redis.call('SET', name, ARGV[1], 'NX', 'PX', ARGV[2]) then
  try('ZREM', queue, me)
  return 1
end
if KEYS[3] and ARGV[8] ~= '0' and me ~= '' then
  local mark, since = try('GET', KEYS[3]), now - ARGV[5]
  local older, writer = string.match(type(mark) == 'string' and mark or '', '^(%d+) (%x+) ')
  -- A foreign value is left alone: it may be another lock.
  if not mark or older and (older + 0 > since or writer == ARGV[7]) then
    try('SET', KEYS[3], string.format('%.0f %s %s', since, ARGV[7], string.match(me, '^[^ ]*')), 'PX', ARGV[8])
  end
end
local left, hash = redis.call('PTTL', name)
if found == 'string' then
  hash = string.sub(redis.sha1hex(string.sub(redis.call('GET', name), 1, 20)), 1, 6)
else
  hash = digits(members())
end
return string.format('%.0f %s', left, hash) .. join()
