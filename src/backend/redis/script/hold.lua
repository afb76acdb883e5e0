-- What a client does after its claim: renews its hold, releases it or leaves the queue, and records why it did not begin.

-- Never creates the lock anew, and uses no command that is refused when the server is out of memory. An expiry that was
-- removed or shortened is restored.
local function renew()
  if mode == false then
    return {outcome = 'gone'}
  end
  if not holds(token) then
    return {outcome = 'taken'}
  end
  call('PEXPIRE', members .. token, request.lease)
  record_lease_end(token, request.lease)
  extend_lock(request.lease)
  add_to_index(request.lease)
  local revocation = call('HGET', holder, 'r:' .. token)
  track_lock()
  return {outcome = 'renewed', revocation = revocation or nil}
end

-- Stores that a member's run has succeeded. The grant is not later than the client has held the lock by its own clock:
-- the server's clock may have been set, or the hold recorded again. Returns why it could not be stored, if so.
local function record_success()
  local at, fencing = string.match(call('GET', members .. token) or '', '"at":(%d+)'), fencing_of(token)
  local text = string.format('{"format":1,"granted_at":%.0f,"ended_at":%.0f,"fencing_token":%s,',
    math.min(tonumber(at) or now, now - request.success.held), now, fencing or 'null')
  local reply = try('SET', success, text .. string.sub(request.success.by, 2), 'PX', retention)
  return reply.err
end

-- Ends the hold, or keeps it without its owner for `rest` ms unless it is revoked. Removes the queue entry in any case.
local function release()
  local rest, outcome, unrecorded = request.rest, mode and 'taken' or 'gone', nil
  local is_revoked = mode and mode ~= 'f' and call('HEXISTS', holder, 'r:' .. token) == 1
  local place, is_member = call('ZRANK', queue, token), holds(token)
  local record, text = request.record, is_member and call('GET', members .. token) or ''
  if request.attempt and (attempt_of(text) or 0) > request.attempt then
    -- The claim that it takes back has been made again meanwhile.
    return {outcome = 'taken'}
  end
  if is_revoked then
    rest = 0
  end
  if record and (is_revoked or not is_member) and string.find(history, '^dlock#succeeded:') then
    history = side('history')
    record = string.gsub(record, '}$', ',"interrupted":true}')
  end
  -- Not if an earlier release, whose reply may be lost, has recorded it: that has ended the hold, or kept it.
  local was_ended = string.find(text, '"ended":', 1, true)
  if not was_ended and (is_member or not request.is_repeated) then
    record_outcome(record)
  end
  if place then
    leave(place)
  end
  if is_member then
    outcome = rest > 0 and 'kept' or 'released'
    if request.success and not is_revoked then
      unrecorded = record_success()
    end
    end_membership(token, rest)
  else
    count_members()
  end
  if place or is_member then
    call_next()
  end
  return {outcome = outcome, unrecorded = unrecorded}
end

-- Stores the record of a run that did not begin.
local function record_run()
  record_outcome(request.record)
  return {outcome = 'done'}
end

local operations = {renew = renew, release = release, record = record_run}
