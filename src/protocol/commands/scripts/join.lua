-- The same, when they are denied: whether the waiter is in the queue. ARGV[3] to ARGV[6] are as in QUEUE, empty and zeros if it
-- does not wait.

local function join()
  if me == '' then
    return ' -'
  end
