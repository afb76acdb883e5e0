-- What keeps out those who do not look for the freeze of a lock.

-- Keeps out those who do not look for the freeze: other programs, from which a free lock is hidden by the marker, and each
-- dlock that does not know of freezes, nor of this format of the waiters.
local function keep_frozen()
  if not mode and not is_marked then
    clear_lock()
  end
  if call('HLEN', waiters) > 1 and call('EXISTS', queue) == 0 then
    -- All waiters have expired.
    call('DEL', waiters)
  end
  if call('HGET', waiters, 'format') ~= '2' then
    call('HSET', waiters, 'format', 2)
  end
  if call('PTTL', waiters) < freeze.rest then
    call('PEXPIRE', waiters, freeze.rest)
  end
  add_to_index(freeze.rest)
  extend_index(freeze.rest)
end

-- Lets every dlock wait for the lock again.
local function thaw_waiters()
  local left = call('PTTL', queue)
  if left == -2 then
    call('DEL', waiters)
  else
    call('HSET', waiters, 'format', 1)
    call('PEXPIRE', waiters, left >= 0 and left or retention)
  end
end
