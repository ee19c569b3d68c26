-- ACQUIRE_OR_ENQUEUE: acquire. The lock may have been reserved for this waiter, if its last holder was fair.

if redis.call('SET', lock, ARGV[1], 'NX', 'PX', ARGV[2]) then
  try('ZREM', queue, me)
  if try('GET', turn) == channel then
    try('DEL', turn)
  end
  return redis.status_reply('OK')
end
