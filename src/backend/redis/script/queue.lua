-- The queue: who waits, who is called, and who is notified.

local function leave_queue(id)
  call('ZREM', queue, id)
  call('HDEL', waiters, id)
  try('ZREM', slot_waiters, id)
  -- Refused for a key that is not on this node any more while the slot migrates; a command with two keys is refused
  -- too.
  if try('ZCARD', queue) == 0 and not frozen() then
    call('DEL', waiters)
  end
end

local function read_waiter(id)
  local text = call('HGET', waiters, id)
  if not text then
    return nil
  end
  local m, of, delivery, ends, called, who = string.match(text, '^(%a) (%d+) (%d) (%d+) (%d+) (.*)$')
  called = m and tonumber(called)
  if m and called > now + slow_claim_ms then
    -- The clock has been set back since: its time to claim is over.
    called = now
  end
  return m and {mode = m, of = tonumber(of), delivery = delivery, ends = tonumber(ends), called = called, who = who}
end

local function write_waiter(id, w)
  return try('HSET', waiters, id,
    string.format('%s %.0f %s %.0f %.0f ', w.mode, w.of, w.delivery, w.ends, w.called) .. w.who)
end

-- Publishes a message to a waiter. Returns whether it may have been received: a missing permission to publish does not
-- mean that there is no subscriber, and a server counts only its own subscribers: not those of another node, and not
-- clients that are reconnecting from the master that it has replaced.
local function notify(id, w, word)
  return w.delivery == '0' or w.delivery == '3' or try('PUBLISH', channels .. id, word) ~= 0 or w.delivery == '2'
end

local function fits(wants, of, held, occupied_slots, slots)
  return not held or wants == 's' and held == 's' or wants == 'c' and held == 'c' and of == slots and occupied_slots < of
end

-- Notifies two waiters, from this position on, that the queue has moved: the head has to watch the lock, the second one
-- the head.
local function notify_next(place, me)
  local notified = 0
  while notified < 2 do
    local id = call('ZRANGE', queue, place + notified, place + notified)[1]
    if not id then
      break
    end
    local w = read_waiter(id)
    if w and (id == me or notify(id, w, 'next')) then
      notified = notified + 1
    else
      leave_queue(id)
    end
  end
  return notified
end

-- Removes the claim from this position. If it was the head or the second one, others have to watch from now on.
local function leave(place)
  leave_queue(token)
  if place < 2 then
    notify_next(0, nil)
  end
end

-- Calls a waiter, and stores until when it may claim. Returns whether it may have received the message.
local function call_waiter(id, w)
  if not notify(id, w, 'called') then
    return false
  end
  w.called = now + (w.delivery == '3' and slow_claim_ms or claim_ms)
  write_waiter(id, w)
  return true
end

-- There is room for the claim, but the called waiters have not taken it: they may be dead, and those behind them too. So
-- all of them are called now, from this position on, and together they cost the time of one claim. The first of them that
-- claims still comes first, and the others keep their positions. Returns until when a waiter ahead may claim.
local function call_ahead(me, place, promised)
  local ahead = me and call('ZRANK', queue, me) or call('ZCARD', queue)
  for _, id in ipairs(call('ZRANGE', queue, place, math.min(ahead, math.max(place, max_ahead)) - 1)) do
    local w = read_waiter(id)
    if w and not fits(w.mode, w.of, mode, used, slots) then
      break
    elseif w and (w.called > 0 or w.ends > now and call_waiter(id, w)) then
      promised = math.max(promised, w.called)
    end
  end
  return promised
end

-- Notifies those behind the called waiters that the queue has moved: the next two and, because all of these may have been
-- stopped together, the last one, which is to check on them.
local function notify_behind(place, me)
  local notified = notify_next(place, me)
  if call('ZCARD', queue) > place + notified then
    local last = call('ZRANGE', queue, -1, -1)[1]
    local w = read_waiter(last)
    if last ~= me and not (w and notify(last, w, 'look')) then
      leave_queue(last)
    end
  end
end

-- Calls the waiters whose turn it is, from the head of the queue while there is room, a limited number at a time: each
-- of them that claims has the next one called. Waiters that did not claim in time, or that cannot be reached, lose their
-- queue position. `me` is not called but granted. `wants` and `many`: the mode and the slots of the claim of this
-- request, if it has one; it stands in the queue as `me`, or behind the queue. Returns whether the claim is granted; until
-- when a waiter ahead may claim; the mode held, the slots taken and the number of slots then; and the number of waiters that
-- are called. While the lock is frozen, nobody is called or granted, and nobody loses a position here; a waiter that cannot
-- be reached may, when another one leaves (`notify_next`).
local function turn(me, wants, many)
  local held, occupied_slots, of = mode, used, slots
  if frozen() then
    return false, 0, held, occupied_slots, of, -1
  end
  local place, called, late, granted_now, promised = 0, false, false, false, 0
  while true do
    local id = call('ZRANGE', queue, place, place)[1]
    if not id then
      break
    end
    local w = read_waiter(id)
    if not w or id ~= me and (w.ends <= now or w.called > 0 and w.called <= now) then
      leave_queue(id)
    elseif not fits(w.mode, w.of, held, occupied_slots, of) or place >= max_called then
      break
    elseif id == me then
      held, of, occupied_slots, granted_now = w.mode, w.of, occupied_slots + 1, true
      leave_queue(id)
    else
      local is_new = w.called == 0
      if is_new and not call_waiter(id, w) then
        leave_queue(id)
      else
        held, of, occupied_slots, called = w.mode, w.of, occupied_slots + 1, called or is_new
        late = late or w.called - now <= claim_ms - late_after_ms
        promised, place = math.max(promised, w.called), place + 1
      end
    end
  end
  -- A claim calls others only once per call window, or the called waiters would call each other.
  if wants and not granted_now and (called or late and not me) and fits(wants, many, mode, used, slots) then
    promised = call_ahead(me, place, promised)
  end
  if called then
    notify_behind(place, me)
  end
  return granted_now, promised, held, occupied_slots, of, place
end

-- Calls the waiters whose turn it is, and removes the lock from the index if it has no user left and is not frozen.
local function call_next()
  turn(nil)
  if not mode and not frozen() and call('EXISTS', queue) == 0 then
    try('ZREM', index, lock)
  end
end
