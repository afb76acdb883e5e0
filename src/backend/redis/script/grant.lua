-- Grants a lock to a claim.

-- The eviction policy of the server, if it is requested; nil if the server does not evict keys.
local function eviction_policy()
  local info = request.eviction and try('INFO', 'memory')
  if type(info) == 'string' and not string.find(info, '\nmaxmemory:0\r', 1, true) then
    local policy = string.match(info, 'maxmemory_policy:([%w-]+)')
    return policy ~= 'noeviction' and policy or nil
  end
end

-- With `once_per`, whether a free lock may be granted: the reply to a claim that is not due, or whose record of the last
-- success is in an unknown format; or how far, in ms, a record lies in the future that is ignored.
local function due()
  local text = call('GET', success)
  if not text and ARGV[2] then
    -- It may still exist on the node that the keys migrate from.
    error('TRYAGAIN')
  elseif not text then
    return nil
  end
  local is_json, last = pcall(cjson.decode, text)
  last = is_json and type(last) == 'table' and last or {}
  if last.format ~= 1 or type(last.granted_at) ~= 'number' then
    local format = tonumber(last.format)
    return {outcome = 'other_success', format = format and format ~= 1 and tostring(format) or 'unknown'}
  end
  local ahead = last.granted_at - now
  if ahead > request.once_per then
    return nil, ahead
  elseif ahead + request.once_per > 0 then
    return {outcome = 'not_due', success = text, now = now}
  end
end

-- The reply to a claim that is granted.
local function granted(fencing, slot, undated)
  add_to_index(request.lease)
  track_lock()
  return {
    outcome = 'granted', fencing = fencing, lease = request.ttl, slot = tonumber(slot), undated = undated,
    eviction = eviction_policy()
  }
end

-- Takes the free lock, with this record of its first member. The lock is set last: a failure before that (a missing
-- permission, no memory) has taken nothing.
local function take_lock(fencing, slot, text)
  local lease, wants, of = request.lease, request.mode, request.slots
  local new = token
  if wants ~= 'x' then
    new = 'dlock:' .. (wants == 's' and 's' or string.format('c%.0f', of)) .. ':' .. fencing
  end
  call('DEL', holder)
  call('HSET', holder, 'format', wants == 'x' and 1 or 2, 'value', new, 'mode', wants, 'slots', of, 'm:' .. token, slot)
  call('PEXPIRE', holder, lease)
  if wants ~= 'x' then
    call('DEL', ends)
    call('DEL', vacant)
    call('ZADD', ends, now + lease, token)
    call('PEXPIRE', ends, lease + 1000)
  end
  if wants == 'c' then
    call('HSET', holder, 'high', 1)
  end
  call('SET', members .. token, text, 'PX', lease)
  write_lock(new, lease)
end

-- Adds the claim as a member, and takes the lock if it is the first one.
local function hold(fencing, slot, undated)
  local lease = request.lease
  local text = string.format('{"fencing":%s,"at":%.0f,"lease":%.0f,"attempt":%.0f,"identity":', fencing, now, lease,
    request.attempt) .. request.identity .. '}'
  if mode then
    call('HSET', holder, 'm:' .. token, slot)
    call('SET', members .. token, text, 'PX', lease)
    if mode ~= 'x' then
      call('ZADD', ends, now + lease, token)
    end
    count = count + 1
    extend_lock(lease)
  else
    take_lock(fencing, slot, text)
  end
  return granted(fencing, slot, undated)
end

-- Takes the lowest free slot.
local function free_slot()
  local slot = 0
  if mode == 'c' then
    local lowest = call('ZRANGE', vacant, 0, 0)[1]
    if lowest then
      call('ZREM', vacant, lowest)
      return lowest
    end
    slot, high = high, high + 1
    call('HSET', holder, 'high', string.format('%.0f', high))
  end
  while mode == 'x' and occupied[string.format('%.0f', slot)] do
    slot = slot + 1
  end
  return string.format('%.0f', slot)
end

-- Grants the lock to the claim, whose turn it is. `restored`: the fencing token of a hold of a Redlock that this node has
-- lost.
local function grant(restored)
  local undated = nil
  if request.once_per and not restored then
    local reply, ahead = due()
    if reply then
      call_next()
      return reply
    end
    undated = ahead
  end
  local fencing = next_fencing(restored or 0, request.counter_life, restored)
  if not fencing then
    return {outcome = 'counter_exhausted'}
  end
  try('ZREMRANGEBYSCORE', index, '-inf', now - index_margin)
  extend_index(retention)
  return hold(fencing, request.mode == 'c' and free_slot() or '', undated)
end

-- Notes that the hold is that of this attempt, if it is the latest one: the release of an earlier one does not end it.
local function note_attempt()
  local text = call('GET', members .. token) or ''
  if (attempt_of(text) or 0) < request.attempt then
    local latest = string.format('"attempt":%.0f', request.attempt)
    -- A server out of memory has granted it nevertheless.
    try('SET', members .. token, string.gsub(text, '"attempt":%d+', latest, 1), 'PX', request.lease)
  end
end

-- Grants the lock again to a token that is a member already: it belongs to an earlier attempt of the same client whose
-- reply was lost.
local function grant_again()
  local fencing = holds(token) and fencing_of(token)
  if fencing then
    call('PEXPIRE', members .. token, request.lease)
    note_attempt()
    record_lease_end(token, request.lease)
    extend_lock(request.lease)
    leave_queue(token)
    return granted(fencing, call('HGET', holder, 'm:' .. token))
  end
end

-- Enters the hold that the client runs in. Returns nil if there is none, and the client does not need one.
local function enter()
  local wants, of, outer_token = request.mode, request.slots, nil
  for _, outer in ipairs(request.outer) do
    if holds(outer) then
      outer_token = outer
    end
  end
  if not outer_token then
    return request.must_nest and {outcome = 'outer_lost'} or nil
  end
  if mode == 'c' and wants == 'c' and slots ~= of then
    return {outcome = 'other_slots', slots = slots}
  end
  if mode ~= 'x' and mode ~= wants then
    return {outcome = 'outer_mode', mode = mode, slots = slots}
  end
  local fencing, slot = fencing_of(outer_token), ''
  if not fencing then
    return {outcome = 'outer_lost'}
  end
  count_members()
  if wants == 'c' and mode == 'x' then
    slot = free_slot()
  elseif wants == 'c' then
    slot = call('HGET', holder, 'm:' .. outer_token) or ''
    call('HSET', holder, 'n:' .. slot, tonumber(call('HGET', holder, 'n:' .. slot) or 0) + 1)
  end
  return hold(fencing, slot)
end
