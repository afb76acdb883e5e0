-- What operators do: end the holds of others, freeze and thaw a lock, and raise its fencing counter.

-- Asks all members of a hold to give it up: they learn it from their next renewal, or at once because the lock's key
-- changes. Removes members whose run has ended, and all members if the request has no revocation.
local function revoke()
  local fencing, notified, removed = '"fencing":' .. request.fencing .. ',', 0, 0
  read_members()
  local all = member_slots
  for id in pairs(all) do
    local text = call('GET', members .. id) or ''
    if string.find(text, fencing, 1, true) then
      if not request.revocation or string.find(text, '"ended":', 1, true) then
        end_membership(id, 0)
        removed = removed + 1
      else
        -- A removed expiry is restored. This comes first: after it even a server out of memory accepts the revocation.
        local left = call('PTTL', lock)
        call('PEXPIRE', lock, left >= 0 and left or math.max(longest, 1000))
        call('HSET', holder, 'r:' .. id, request.revocation)
        notified = notified + 1
      end
    end
  end
  if removed > 0 then
    call_next()
  end
  return {outcome = notified + removed > 0 and 'ended' or 'gone', notified = notified, removed = removed}
end

-- Deletes a foreign value if it still has this digest.
local function delete_foreign()
  local there = mode == 'f' and value_length() <= 1048576 and call(key_type == 'string' and 'GET' or 'DUMP', lock)
  if not there or redis.sha1hex(there) ~= request.digest then
    return {outcome = 'gone'}
  end
  free_lock()
  call_next()
  return {outcome = 'ended', notified = 0, removed = 1}
end

-- Raises the fencing counter of a free lock.
local function raise_fencing()
  count_members()
  if mode == 'f' or mode and count > 0 then
    return {outcome = 'held'}
  end
  local last, floor = last_fencing(), tonumber(request.floor)
  if last > floor then
    return {outcome = 'above', fencing = string.format('%.0f', last)}
  end
  set_counter(floor, request.counter_life)
  return {outcome = 'raised'}
end

-- The waiters that are called cannot claim the lock while it is frozen, and keep their positions.
local function withdraw_calls()
  for _, id in ipairs(call('ZRANGE', queue, 0, max_expired - 1)) do
    local w = read_waiter(id)
    if w and w.called > 0 then
      w.called = 0
      write_waiter(id, w)
    end
  end
end

-- Freezes the lock; repeated with the same id, it only keeps it frozen. Returns the freeze that there is then, and whether
-- it was there before.
local function freeze_lock()
  local there, format = frozen(), call('HGET', waiters, 'format')
  if is_freeze_elsewhere then
    error('TRYAGAIN')
  elseif there and there.id ~= request.id then
    return {outcome = 'frozen', freeze = there.text, was_there = true}
  elseif format and format ~= '1' and format ~= '2' then
    return {outcome = 'other_format', format = format}
  end
  if not there then
    local lasts, text = request.lasts, string.sub(request.freeze, 1, -2) .. string.format(',"since":%.0f', now)
    if lasts then
      text = text .. string.format(',"until":%.0f}', now + lasts)
      call('SET', frozen_key, text, 'PX', lasts)
    else
      text = text .. '}'
      call('SET', frozen_key, text)
    end
    set_freeze(text)
    withdraw_calls()
  end
  free_if_expired()
  keep_frozen()
  return {outcome = 'frozen', freeze = freeze.text, was_there = there ~= nil}
end

-- Ends the freeze with this id.
local function thaw_lock()
  local there = frozen()
  if is_freeze_elsewhere then
    error('TRYAGAIN')
  elseif not there or there.id ~= request.id then
    return {outcome = 'gone'}
  end
  -- Refused, before anything is changed, for keys that are not on this node any more while the slot migrates.
  call('PTTL', queue)
  call('HGET', waiters, 'format')
  -- This comes first: after it even a server out of memory accepts the other writes.
  call('DEL', frozen_key)
  freeze = nil
  thaw_waiters()
  -- A dlock that does not know of freezes may have called some when its hold ended.
  withdraw_calls()
  free_if_expired()
  if is_marked then
    free_lock()
  end
  -- The index has it for as long as the freeze would last.
  try('ZREM', index, lock)
  if mode or call('EXISTS', queue) == 1 then
    add_to_index(math.max(call('PTTL', lock), call('PTTL', queue), 0))
  end
  call_next()
  return {outcome = 'done'}
end

local operations = {
  revoke = revoke, delete = delete_foreign, raise = raise_fencing, freeze = freeze_lock, thaw = thaw_lock
}
