-- Every operation of dlock on a lock in Redis, each as one atomic step. script.rs describes what is stored where, and
-- why.
--
-- KEYS: the lock. No other key is declared: while a slot of a Redis Cluster migrates, a request that declares several
-- keys of which some are missing is refused (cluster-spec, "TRYAGAIN").
--
-- The life of a waiter, whose operation is `acquire` each time:
--
-- 1. It joins: it gets a number in `queue` and an entry in `waiters`, which expires unless it sends a request every lease.
-- 2. The first waiter that the lock has room for is called, and so are those behind it that fit beside it
--    (`turn`, at a release or at any claim). It is sent `called`; the next two are sent `next`.
-- 3. It claims within `claim_ms`: its next request is granted, it leaves the queue, and is a member.
-- 4. If it does not claim in time, or cannot be reached, or its entry has expired, it loses its queue position; the next
--    waiter is called. If it is alive, its next request joins again, at the end.
-- 5. If it gives up, it sends `release`, which removes its entry.
--
-- ARGV[1]: the request, a JSON object with the fields of script.rs. It is one argument because a server closes the
-- connection of a client that has not authenticated at the eleventh argument (networking.c), before it reports that a
-- password is missing. ARGV[2] is present if the slot of the lock may still be migrating to this node of a Redis Cluster.
--
-- Returns a JSON object with the fields of reply.rs. In both, fencing tokens and numbers in the queue are texts: cjson
-- writes numbers with 14 digits.
local call, try = redis.call, redis.pcall
local lock, request = KEYS[1], cjson.decode(ARGV[1])
local token, tail, index, history, recipe = request.token, request.tail, request.index, request.history, request.recipe
local function side(what)
  return 'dlock#' .. what .. ':' .. tail
end
local holder, counter, queue, waiters = side('holder'), recipe.counter or side('fencing'), side('queue'), side('waiters')
local members, channels, success, frozen_key = side('member') .. ':', side('call') .. ':', side('success'), side('frozen')
-- Sorted sets: members by the end of their lease, vacant slots by number, and waiters for a slot by the end of their
-- queue entry. They ensure that no step reads all members or all waiters of a lock, of which there may be thousands.
local ends, vacant, slot_waiters = side('member-ends'), side('free-slots'), side('waiter-slots')
-- How long, in ms, a called waiter has to claim; how many outcomes are stored; for how long they and the last success
-- are; how long the index outlives the last grant, and how long an entry in it outlives the expected end of its lock.
local claim_ms, max_outcomes, retention, index_margin = 500, 20, 2678400000, 86400000
-- How long, in ms, a freeze without an end lasts where a time is needed: 1000 years. No other one lasts longer.
local forever = 31536000000000
-- The value of a lock that is free and frozen. It keeps other programs from taking the lock.
local marker = 'dlock:frozen'
-- The same for a called waiter that polls, and that polls seldom because it was far back in the queue.
local slow_claim_ms = 2000
-- The maximum number of waiters that are called and have not claimed yet, and of expired members that are removed in
-- one step.
local max_called, max_expired = 64, 200
-- A called waiter that has not claimed after this many ms is late. Then at most this many waiters at the head of the
-- queue are called although it is not their turn. The latter is less than `max_called / 2`, so that it is not mistaken
-- for a run of readers (`is_in_run`).
local late_after_ms, max_ahead = 50, 32
-- The length of the longest value that is read from the lock. Longer values are data of other programs.
local max_value_length = 8192

-- The first request of a user that had to authenticate tries what a lock needs sooner or later: a missing permission must
-- not be discovered while a command runs. Nothing is changed, because the scratch key and the field do not exist, and
-- the HSET lacks an argument. A server that accepts no writes, which the first trial shows, reports that error later
-- from the operation itself; after a write that it lets through, the operation would not get that error any more.
local function denied_rights()
  local scratch, denied = members .. token .. '?', {}
  local trials = {
    {'SET', scratch, 'x', 'XX'}, {'DEL', scratch}, {'PEXPIRE', scratch, 1}, {'HSET', scratch, 'x', 'y', 'z'},
    {'ZADD', scratch, 'XX', 0, '?'}, {'ZREM', scratch, '?'}, {'TIME'}, {'GET', scratch}, {'TYPE', scratch},
    {'EXISTS', scratch}, {'PTTL', scratch}, {'HMGET', scratch, '?'}, {'HGETALL', scratch}, {'HEXISTS', scratch, '?'},
    {'HLEN', scratch}, {'ZRANGE', scratch, 0, 0}, {'ZSCORE', scratch, '?'}, {'ZRANK', scratch, '?'}, {'ZCARD', scratch}
  }
  -- Keys of another type are no obstacle: permissions are checked first.
  for _, key in ipairs({lock, holder, counter, queue, waiters}) do
    trials[#trials + 1] = {'HGET', key, '?'}
    trials[#trials + 1] = {'HDEL', key, '?'}
  end
  for which, trial in ipairs(trials) do
    local reply = try(unpack(trial))
    local message = type(reply) == 'table' and reply.err or ''
    if string.find(message, 'ermission', 1, true) or string.find(message, 'user executing', 1, true)
      or string.find(message, 'Unknown ', 1, true) then
      denied[#denied + 1] = {command = trial[1], key = trial[2], message = message}
    elseif which == 1 and message ~= '' then
      break
    end
  end
  return denied
end

if request.tries_rights then
  local denied = denied_rights()
  if denied[1] then
    return cjson.encode({outcome = 'denied', denied = denied})
  end
end
if request.operation == 'try_rights' then
  return cjson.encode({outcome = 'done'})
end

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The length of the value of the lock, in bytes. For a user without permission for these commands the length is not
-- checked.
local function value_length()
  local bytes = recipe.channel and try('MEMORY', 'USAGE', lock) or try('STRLEN', lock)
  return type(bytes) == 'number' and bytes or 0
end

-- The value of the lock: a string or, with the recipe of Redisson, the name of the only field of a hash; false if the
-- key does not exist; true if the value is not one that dlock stores. Large values are not read: copying 100 MB blocks
-- the server for 0.5 s.
local function read_lock()
  if value_length() > max_value_length then
    return true
  end
  if not recipe.channel then
    return try('GET', lock)
  end
  local fields = try('HLEN', lock)
  if fields == 1 then
    return call('HGETALL', lock)[1]
  end
  return type(fields) == 'table' and fields or fields ~= 0
end

local own_type = recipe.channel and 'hash' or 'string'
local key_type, value = own_type, read_lock()
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  key_type, value = call('TYPE', lock).ok, false
end
local is_marked = value == marker
if is_marked then
  value = false
end

-- mode: false is free, f is foreign. high: all slots ever taken are below it; those of them that are free again are in
-- `vacant`.
local mode, slots, high = false, 0, 0
if key_type ~= own_type then
  mode = 'f'
elseif value then
  local noted = try('HMGET', holder, 'format', 'value', 'mode', 'slots', 'high')
  if noted.err and not string.find(noted.err, 'WRONGTYPE', 1, true) then
    return noted
  end
  if noted[2] == value then
    if noted[1] ~= (noted[3] == 'x' and '1' or '2') then
      return cjson.encode({outcome = 'other_format', format = noted[1] or nil})
    end
    mode, slots, high = noted[3], tonumber(noted[4]), tonumber(noted[5] or 0)
  else
    mode = value == token and 'x' or 'f'
  end
end

-- The freeze of the lock: its text, its id, and how long it lasts yet, in ms; nil if there is none. While the slot of the
-- lock migrates, it may be on the other node: only `rest` is known then, or nothing.
local freeze, is_freeze_known, is_freeze_elsewhere = nil, false, false
local function set_freeze(text)
  local is_json, read = pcall(cjson.decode, text)
  read = is_json and type(read) == 'table' and read or {}
  local rest = type(read['until']) == 'number' and read['until'] - now or forever
  freeze = text and rest > 0 and {text = text, id = read.id, rest = math.min(rest, forever)} or nil
  is_freeze_known = true
end

-- Returns the freeze, which is read when it is first needed.
local function frozen()
  if is_freeze_known then
    return freeze
  end
  local text = try('GET', frozen_key)
  if type(text) == 'table' then
    -- Refused for a key that is not on this node any more while the slot migrates, or that has never existed.
    is_freeze_elsewhere = string.find(text.err, 'non local', 1, true) ~= nil
    text = not is_freeze_elsewhere and call('GET', frozen_key)
  elseif not text and is_marked and ARGV[2] then
    -- It is still on the node that the keys migrate from.
    is_freeze_elsewhere = true
  end
  set_freeze(text)
  if is_freeze_elsewhere and (is_marked or try('HGET', waiters, 'format') == '2') then
    local rest = call('PTTL', is_marked and lock or waiters)
    freeze = {rest = rest >= 0 and rest or forever}
  end
  return freeze
end

-- Stores in the index that the lock is in use for this many ms, for commands that list the locks. Never read here: a
-- connection with client tracking that reads the index would be notified of every lock.
local function add_to_index(lasts)
  local noted = try('ZADD', index, 'GT', now + lasts, lock)
  if type(noted) == 'table' then
    -- Before Redis 6.2.
    try('ZADD', index, now + lasts, lock)
  end
end

-- Has the index last for so many ms, or longer: another lock in it may be frozen for longer.
local function extend_index(lasts)
  local extended = try('PEXPIRE', index, lasts, 'GT')
  if type(extended) == 'table' then
    -- Before Redis 7.0.
    try('PEXPIRE', index, lasts)
  elseif extended == 0 then
    try('PEXPIRE', index, lasts, 'NX')
  end
end

-- Replaces the value of the lock, unless it is one that dlock does not store: the caller has removed that. The command that
-- may fail for lack of memory comes first.
local function write_lock(text, lease)
  local former = is_marked and marker or value ~= true and value
  if recipe.channel then
    call('HSET', lock, text, 1)
    if former and former ~= text then
      call('HDEL', lock, former)
    end
    call('PEXPIRE', lock, lease)
  elseif lease < forever then
    call('SET', lock, text, 'PX', lease)
  else
    call('SET', lock, text)
  end
  is_marked = text == marker
end

-- Removes the value of the lock, or replaces it by the marker while the lock is frozen. A key that is removed cannot be made
-- again while the slot migrates.
local function clear_lock()
  if not frozen() then
    call('DEL', lock)
    is_marked = false
    return
  end
  if key_type ~= own_type or value == true then
    call('DEL', lock)
  end
  write_lock(marker, freeze.rest)
end

-- Frees the lock and notifies the waiters of other programs unless it is frozen, as far as permissions allow: one waiter
-- of python-redis-lock; all waiters of Redisson, which listen on either kind of channel, and the first in the queue of its
-- fair lock.
local function free_lock()
  if recipe.signal and not frozen() then
    try('DEL', recipe.signal)
    try('LPUSH', recipe.signal, 1)
    try('PEXPIRE', recipe.signal, 1000)
  end
  clear_lock()
  try('DEL', holder)
  if mode == 's' or mode == 'c' then
    try('DEL', ends)
    try('DEL', vacant)
  end
  mode, value, slots, high = false, false, 0, 0
  if recipe.channel and not freeze then
    local first = try('LRANGE', recipe.queue, 0, 0)[1]
    for _, channel in ipairs({recipe.channel, first and recipe.channel .. ':' .. first}) do
      try('PUBLISH', channel, 0)
      try('SPUBLISH', channel, 0)
    end
  end
end

-- The remaining lease of a member, or nil if it has expired. A member whose expiry was removed lives as long as the
-- lock or, if that has no expiry either, for one more lease of the length it asked for.
local function remaining_of(id)
  local left = call('PTTL', members .. id)
  if left == -2 and ARGV[2] then
    -- It may still exist on the node that the keys migrate from.
    error('TRYAGAIN')
  end
  if left == -1 then
    left = call('PTTL', lock)
    if left < 0 then
      left = tonumber(string.match(call('GET', members .. id) or '', '"lease":(%d+)')) or 0
    end
    call('PEXPIRE', members .. id, left)
  end
  return left >= 0 and left or nil
end

local function holds(id)
  if mode == 'x' and value == id then
    return true
  end
  return mode and mode ~= 'f' and call('HEXISTS', holder, 'm:' .. id) == 1 and remaining_of(id) ~= nil
end

-- The number of elements of a sorted set. The command is refused for a key that is not on this node any more while the
-- slot migrates.
local function cardinality(set)
  local count = try('ZCARD', set)
  return type(count) == 'number' and count or 0
end

-- Sets the expiry of the lock and of what is stored beside it, which must not expire before the lock.
local function set_expiry(lasts)
  call('PEXPIRE', lock, lasts)
  call('PEXPIRE', holder, lasts)
  if mode ~= 'x' then
    try('PEXPIRE', ends, lasts + 1000)
    try('PEXPIRE', vacant, lasts + 1000)
  end
end

-- When the lease of a member ends: the earliest (0) or the latest (-1).
local function lease_end(which)
  return tonumber(call('ZRANGE', ends, which, which, 'WITHSCORES')[2] or 0)
end

-- Stores the new end of a member's lease in the set. The lease itself is the expiry of the member's key.
local function record_lease_end(id, lasts)
  if mode ~= 'x' then
    try('ZADD', ends, 'XX', now + lasts, id)
  end
end

-- Removes a member, and makes its slot vacant unless another member occupies it. Returns false if its slot is not
-- known.
local function remove_member(id)
  local slot = mode == 'c' and call('HGET', holder, 'm:' .. id)
  call('HDEL', holder, 'm:' .. id, 'r:' .. id)
  if mode == 'x' then
    return true
  end
  call('ZREM', ends, id)
  if mode == 'c' and tonumber(slot or nil) then
    local others = tonumber(call('HGET', holder, 'n:' .. slot) or 0)
    if others > 0 then
      call('HSET', holder, 'n:' .. slot, others - 1)
    else
      try('ZADD', vacant, slot, slot)
      try('PEXPIRE', vacant, math.max(call('PTTL', lock), 0) + 1000)
    end
  end
  return mode ~= 'c' or slot ~= false
end

-- Reads all live members: their slots and remaining leases, their number, the longest lease, and which and how many
-- slots are occupied. Removes the expired ones. An exclusive lock has few members, the runs nested in it. For other
-- modes all members are read only to revoke a hold or to rebuild the sets.
local member_slots, member_leases, count, longest, occupied, used = {}, {}, 0, 0, {}, 0
local function read_members()
  member_slots, member_leases, count, longest, occupied, used = {}, {}, 0, 0, {}, 0
  local fields = mode and mode ~= 'f' and call('HGETALL', holder) or {}
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'm:' then
      local id = string.sub(fields[i], 3)
      local left = remaining_of(id)
      if left then
        local slot = fields[i + 1]
        member_slots[id], member_leases[id], count = slot, left, count + 1
        longest = math.max(longest, left)
        if slot ~= '' then
          used = used + (occupied[slot] and 0 or 1)
          occupied[slot] = (occupied[slot] or 0) + 1
        end
      else
        call('HDEL', holder, fields[i], 'r:' .. id)
      end
    end
  end
end

-- Rebuilds the sets of a shared lock from its hash: one of them was evicted, or a member was removed while the slot
-- migrated.
local function rebuild_sets()
  read_members()
  if count == 0 then
    return
  end
  call('DEL', ends)
  call('DEL', vacant)
  high = 0
  for id, left in pairs(member_leases) do
    call('ZADD', ends, now + left, id)
  end
  for slot, several in pairs(occupied) do
    high = math.max(high, (tonumber(slot) or 0) + 1)
    call('HSET', holder, 'n:' .. slot, several - 1)
  end
  for slot = 0, high - 1 do
    local text = string.format('%.0f', slot)
    if not occupied[text] then
      call('HDEL', holder, 'n:' .. text)
      call('ZADD', vacant, slot, text)
    end
  end
  call('HSET', holder, 'high', high)
  set_expiry(math.max(call('PTTL', lock), longest))
end

-- Counts the live members of a lock and its occupied slots. Removes expired members, a limited number at a time if the
-- lock is shared.
local function count_members()
  if mode ~= 's' and mode ~= 'c' then
    return read_members()
  end
  local removed, is_known = 0, true
  while removed < max_expired do
    local first = call('ZRANGE', ends, 0, 0, 'WITHSCORES')
    if not first[1] or tonumber(first[2]) >= now then
      break
    end
    local left = remaining_of(first[1])
    if left then
      -- It was renewed while the keys of the lock were on different nodes.
      call('ZADD', ends, now + left, first[1])
    else
      is_known = remove_member(first[1]) and is_known
    end
    removed = removed + 1
  end
  count, used = cardinality(ends), mode == 'c' and high - cardinality(vacant) or 0
  if count == 0 or used > count or not is_known then
    rebuild_sets()
  elseif removed == max_expired and lease_end(-1) < now and not remaining_of(call('ZRANGE', ends, -1, -1)[1]) then
    -- All of them have expired.
    count, used = 0, 0
  end
end

-- Stores the outcome of a run, or why it did not begin, and that the lock has outcomes.
local function record_outcome(text)
  if text and text ~= '' then
    try('LPUSH', history, string.format('%.0f ', now) .. text)
    try('LTRIM', history, 0, max_outcomes - 1)
    try('PEXPIRE', history, retention)
    local recorded = string.gsub(index, '^dlock#locks', 'dlock#recorded')
    try('ZADD', recorded, now, lock)
    try('ZREMRANGEBYSCORE', recorded, '-inf', now - retention)
    try('PEXPIRE', recorded, retention)
  end
end

-- The eviction policy of the server, if it is requested; nil if the server does not evict keys.
local function eviction_policy()
  local info = request.eviction and try('INFO', 'memory')
  if type(info) == 'string' and not string.find(info, '\nmaxmemory:0\r', 1, true) then
    local policy = string.match(info, 'maxmemory_policy:([%w-]+)')
    return policy ~= 'noeviction' and policy or nil
  end
end

-- Extends the expiry of a lock that may have several holders, for a lease of this length.
local function extend_lock(lease)
  if mode == 'x' and call('HLEN', holder) > 5 then
    read_members()
  end
  local to = lease
  if mode ~= 'x' or count > 1 then
    if call('PTTL', lock) >= lease then
      return
    end
    to = lease + math.floor(lease / 3)
  end
  set_expiry(to)
end

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
  return m and {mode = m, of = tonumber(of), delivery = delivery, ends = tonumber(ends), called = tonumber(called), who = who}
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
-- when a waiter ahead may claim; the mode held, the slots taken and the number of slots then; and whether all waiters
-- have been called. While the lock is frozen, nobody is called or granted, and nobody loses a position here; a waiter that
-- cannot be reached may, when another one leaves (`notify_next`).
local function turn(me, wants, many)
  local held, occupied_slots, of = mode, used, slots
  if frozen() then
    return false, 0, held, occupied_slots, of, false
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
  return granted_now, promised, held, occupied_slots, of, call('ZCARD', queue) == place
end

local function fencing_of(id)
  return string.match(call('GET', members .. id) or '', '"fencing":(%d+)')
end

-- Calls the waiters whose turn it is, and removes the lock from the index if it has no user left and is not frozen.
local function call_next()
  turn(nil)
  if not mode and not frozen() and call('EXISTS', queue) == 0 then
    try('ZREM', index, lock)
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

-- Stores that a member's run has succeeded. The grant is not later than the client has held the lock by its own clock:
-- the server's clock may have been set, or the hold recorded again. Returns why it could not be stored, if so.
local function record_success()
  local at, fencing = string.match(call('GET', members .. token) or '', '"at":(%d+)'), fencing_of(token)
  local text = string.format('{"format":1,"granted_at":%.0f,"ended_at":%.0f,"fencing_token":%s,',
    math.min(tonumber(at) or now, now - request.success.held), now, fencing or 'null')
  local reply = try('SET', success, text .. string.sub(request.success.by, 2), 'PX', retention)
  return reply.err
end

-- Redlock: since when, in ms, this node has kept everything that was written to it, and its id. A server that was
-- restarted may have kept less, or older data. Without permission to query the run id, only the loss of all data is
-- detected. A minus sign marks a node that received requests before that time.
local born, itself, sign
local function read_since_marker(id)
  local info = try('INFO', 'server')
  local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
  local before, at, who, ran = string.match(call('GET', 'dlock#since') or '', '^(-?)(%d+) (%S+) ?(%w*)')
  born, itself, sign = tonumber(at), who, before
  if not at or born > now or ran ~= '' and run ~= '' and ran ~= run then
    born, itself, sign = now, who or id, at and '-' or ''
    call('SET', 'dlock#since', string.format('%s%.0f %s %s', sign, now, itself, run))
  end
end

-- Stores the last fencing token. A counter that is ahead of the server's time, such as one that was raised, must not
-- expire: a new one starts at that time.
local function set_counter(last, life)
  call('SET', counter, string.format('%.0f', last))
  if life ~= 0 and last < now * 1000 + life * 500 then
    call('PEXPIRE', counter, life)
  end
end

-- The last fencing token; 0 if there is none.
local function last_fencing()
  local last = tonumber(call('GET', counter) or 0)
  if not last or last ~= last or last < 0 then
    last = 0
  end
  return last
end

-- Returns the fencing token of the next grant, or `to` if that is larger. A counter starts at the server's time. On a
-- single server, and on a node that may have come back with an older counter, the time is also the minimum for the next
-- token. With `noted`, the token was given by other nodes and is only stored.
local function next_fencing(to, life, noted)
  local last = last_fencing()
  local least = born and last > 0 and born * 1000 or time[1] * 1000000 + time[2]
  local next = noted and math.max(last, to) or math.max(math.floor(last) + 1, least, to)
  if next < 9007199254740992 then
    set_counter(next, life)
    return string.format('%.0f', noted and to or next)
  end
end

-- The reply to a claim that is granted.
local function granted(fencing, slot, undated)
  add_to_index(request.lease)
  read_lock()
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
  local text = string.format('{"fencing":%s,"at":%.0f,"lease":%.0f,"identity":', fencing, now, lease)
    .. request.identity .. '}'
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

-- Grants the lock again to a token that is a member already: it belongs to an earlier attempt of the same client whose
-- reply was lost.
local function grant_again()
  local fencing = holds(token) and fencing_of(token)
  if fencing then
    call('PEXPIRE', members .. token, request.lease)
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

-- Another number of slots that the live users of the lock have agreed on: all of them must use the same.
local function other_slots()
  local of = request.slots
  if mode == 'c' and slots ~= of then
    return slots
  end
  -- All live waiters for a slot use the same number, so checking one of them is enough.
  for _ = 1, max_expired do
    local last = call('ZRANGE', slot_waiters, -1, -1, 'WITHSCORES')
    local w = last[1] and tonumber(last[2]) > now and read_waiter(last[1])
    if w and w.of ~= of and last[1] ~= token then
      return w.of
    elseif w or not last[1] or tonumber(last[2]) <= now then
      return nil
    end
    call('ZREM', slot_waiters, last[1])
  end
end

-- Whether a waiter for a lock that several may hold was called, and so were enough waiters behind it: then there is no
-- need to check each of them.
local function is_in_run(w)
  local has_room = request.mode ~= 'x' and fits(request.mode, request.slots, mode, used, slots)
  if w and w.called > now and has_room and not frozen() then
    local later = call('ZRANGE', queue, max_called / 2, max_called / 2)[1]
    later = later and read_waiter(later)
    return later and later.called > now
  end
end

-- How the claim is notified as a waiter; `w` is its entry so far.
local function delivery_of(w)
  if w then
    return (w.delivery == '0' or w.delivery == '3') and '0' or request.delivery
  elseif request.delivery ~= '0' and try('PUBLISH', channels .. token, 'hello') ~= 1 then
    -- The client that frees the lock has the same permissions: a message that cannot reach us from here will not reach
    -- us from there.
    return '0'
  end
  return request.delivery
end

-- Takes a queue position, or keeps the one that the claim has with its entry `w`. Returns how it is notified, and the
-- error if the entry cannot be stored.
local function join_queue(w)
  local delivery, entry_ttl, ticket = delivery_of(w), request.entry_ttl, tonumber(request.ticket)
  local place_now = w and call('ZSCORE', queue, token)
  if not place_now or ticket and tonumber(place_now) ~= ticket then
    local last = call('ZRANGE', queue, -1, -1, 'WITHSCORES')
    local place_then = ticket or math.max(tonumber(last[2] or 0) + 1, time[1] * 1000000 + time[2])
    call('HSET', waiters, 'format', frozen() and 2 or 1)
    call('ZADD', queue, string.format('%.0f', place_then), token)
  end
  if delivery == '0' and (call('ZRANK', queue, token) or 0) > 1 then
    delivery = '3'
  end
  w = {
    mode = request.mode, of = request.slots, delivery = delivery, ends = now + entry_ttl, called = 0, who = request.identity
  }
  local noted = write_waiter(token, w)
  if type(noted) == 'table' and not string.find(noted.err, 'OOM', 1, true) then
    return delivery, noted
  end
  if w.mode == 'c' then
    call('ZADD', slot_waiters, w.ends, token)
    if call('PTTL', slot_waiters) < entry_ttl then
      call('PEXPIRE', slot_waiters, entry_ttl * 2)
    end
  end
  add_to_index(entry_ttl)
  if call('PTTL', queue) < entry_ttl then
    call('PEXPIRE', queue, entry_ttl * 2)
    call('PEXPIRE', waiters, math.max(entry_ttl * 2, freeze and freeze.rest or 0))
  end
  return delivery
end

-- The reply to a claim that is not granted: who holds the lock, and the records of some of them. `promised`: until when a
-- waiter ahead may claim.
local function busy(place, promised, delivery)
  local rest = call('PTTL', lock)
  local ids, records = {}, {}
  if mode == 'x' then
    read_members()
    rest = count > 1 and longest or rest
    for id in pairs(member_slots) do
      ids[#ids + 1] = id
    end
  elseif mode and mode ~= 'f' then
    -- A slot becomes free when the first lease ends, the lock when the last one ends.
    rest = math.max(lease_end(mode == 'c' and request.mode == 'c' and 0 or -1) - now, 0)
    ids = call('ZRANGE', ends, -16, -1)
  end
  for i = 1, math.min(#ids, 16) do
    local text = call('GET', members .. ids[i])
    if text and string.len(text) <= 8192 then
      records[#records + 1] = text
    end
  end
  -- A hash with this field is Redisson's RReadWriteLock, which no recipe supports.
  if key_type == 'hash' and call('HEXISTS', lock, 'mode') == 1 then
    key_type = 'rwlock'
  end
  local what = mode and (mode ~= 'f' and 'dlock' or key_type) or 'free'
  return {
    outcome = 'busy', kind = what, remaining = rest, position = place, call_remaining = math.max(promised - now, 0),
    now = now, can_be_notified = delivery ~= '0' and delivery ~= '3', holders = count,
    number = place > 0 and request.supersedes and string.format('%.0f', call('ZSCORE', queue, token) or 0) or nil,
    records = records[1] and records or nil, eviction = eviction_policy(), freeze = freeze and freeze.text
  }
end

local function supersedes(w)
  return string.find(w.who, '"supersedes":true', 1, true) ~= nil
end

-- The number of the first queue position of a run with this identity, that now has this one.
local function first_number(who, number)
  return tonumber(string.match(who, '"first_ticket":(%d+)') or number)
end

-- The first waiting run that has come later than the claim and supersedes it, wherever it stands: a claim that was late for
-- its turn has lost its position, and is not the newest by that.
local function superseding()
  local first, place, ids = first_number(request.identity, call('ZSCORE', queue, token)), 0, nil
  repeat
    ids = call('ZRANGE', queue, place, place + max_expired - 1, 'WITHSCORES')
    for i = 1, #ids, 2 do
      local w = ids[i] ~= token and read_waiter(ids[i])
      if w and w.ends > now and supersedes(w) and first_number(w.who, ids[i + 1]) > first then
        return w
      end
    end
    place = place + max_expired
  until #ids < 2 * max_expired
end

-- Notifies the waiters that the claim, which has just joined the queue, supersedes: those among the last few ahead of it.
-- Others find out from their next request.
local function notify_superseded(place)
  for _, id in ipairs(place > 0 and call('ZRANGE', queue, math.max(place - max_expired, 0), place - 1) or {}) do
    local w = read_waiter(id)
    if w and supersedes(w) then
      notify(id, w, 'superseded')
    end
  end
end

-- Decides on a claim that neither has the lock nor enters a hold: grants it, or lets it wait.
local function claim_in_order()
  local wants, of = request.mode, request.slots
  local place, promised, delivery = 0, 0, request.delivery
  if request.waits then
    local w, granted_now, failure = read_waiter(token), false, nil
    if w and w.ends <= now then
      leave_queue(token)
      w = nil
    end
    if is_in_run(w) then
      leave_queue(token)
      return grant()
    end
    delivery, failure = join_queue(w)
    if failure then
      return failure
    end
    local newer, rank = nil, request.supersedes and call('ZRANK', queue, token)
    if rank then
      newer = superseding()
    end
    if newer then
      leave(rank)
      call_next()
      return {outcome = 'superseded', by = newer.who}
    elseif rank and not w then
      notify_superseded(rank)
    end
    granted_now, promised = turn(token, wants, of)
    if granted_now then
      return grant()
    end
    place = (call('ZRANK', queue, token) or -1) + 1
  else
    local _, until_, held, occupied_slots, many, all = turn(nil, wants, of)
    if all and fits(wants, of, held, occupied_slots, many) then
      return grant()
    end
    promised = until_
  end
  -- Waiters ahead may be called beside holders that exclude this one.
  return busy(place, fits(wants, of, mode, used, slots) and promised or 0, delivery)
end

-- Counts the holders of a lock that several may hold, and frees it if all of them have expired.
local function free_if_expired()
  if mode == 's' or mode == 'c' then
    count_members()
    if count == 0 then
      free_lock()
    end
  end
end

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

-- Decides on a request for the lock. Numbers of 16 digits are formatted explicitly: Lua would write them as `1.7e+15`.
-- The server's time is used only as the seed of the counters, for the end of queue entries, and for the age of a holder.
local function claim()
  local wants, of, restored = request.mode, request.slots, tonumber(request.restored)
  local reply = grant_again() or enter()
  if reply then
    return reply
  end
  free_if_expired()
  local other = wants == 'c' and other_slots()
  if other then
    leave_queue(token)
    return {outcome = 'other_slots', slots = other}
  end
  if restored then
    leave_queue(token)
    return fits(wants, of, mode, used, slots) and grant(restored) or {outcome = 'outer_lost'}
  end
  local format, there = call('HGET', waiters, 'format'), frozen()
  if format and format ~= '1' and format ~= '2' then
    return {outcome = 'other_format', format = format}
  elseif not format and call('EXISTS', queue) == 1 then
    -- Only if needed: after its first write a script may go on although the server is out of memory.
    call('DEL', queue)
  end
  if is_freeze_elsewhere and (there or fits(wants, of, mode, used, slots)) then
    error('TRYAGAIN')
  elseif there then
    keep_frozen()
  elseif format == '2' then
    thaw_waiters()
  elseif not format and fits(wants, of, mode, used, slots) then
    return grant()
  end
  return claim_in_order()
end

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
  read_lock()
  return {outcome = 'renewed', revocation = revocation or nil}
end

-- Removes a member, or lets it expire after another `rest` ms. Writes that need memory (the note that the run has
-- ended; another value for a lock whose first owner leaves nested runs behind) may fail and are then left out.
local function end_membership(id, rest)
  if rest > 0 then
    local text = call('GET', members .. id)
    if text and not string.find(text, '"ended":', 1, true) then
      try('SET', members .. id, string.format('{"ended":%.0f,', now) .. string.sub(text, 2), 'PX', rest)
    end
    call('PEXPIRE', members .. id, rest)
    record_lease_end(id, rest)
  else
    remove_member(id)
    call('DEL', members .. id)
  end
  count_members()
  if count == 0 and (rest == 0 or mode ~= 'x') then
    free_lock()
  elseif mode ~= 'x' then
    -- Every holder is notified of each change of the lock's key. So it is changed only if it would expire too early, or
    -- much too late for waiters of other programs.
    local lasts, left = math.max(lease_end(-1) - now, rest), call('PTTL', lock)
    if count == 1 then
      set_expiry(lasts)
    elseif left < lasts or left > lasts * 2 then
      set_expiry(lasts + math.floor(lasts / 3))
    end
  else
    longest = math.max(longest, rest)
    set_expiry(longest)
    if rest == 0 and value == id then
      local other = next(member_slots)
      pcall(write_lock, other, longest)
      try('HSET', holder, 'value', other)
    end
  end
end

-- Ends the hold, or keeps it without its owner for `rest` ms unless it is revoked. Removes the queue entry in any case.
local function release()
  local rest, outcome, unrecorded = request.rest, mode and 'taken' or 'gone', nil
  local is_revoked = mode and mode ~= 'f' and call('HEXISTS', holder, 'r:' .. token) == 1
  local place, is_member = call('ZRANK', queue, token), holds(token)
  local record = request.record
  if is_revoked then
    rest = 0
  end
  if record and (is_revoked or not is_member) and string.find(history, '^dlock#succeeded:') then
    history = side('history')
    record = string.gsub(record, '}$', ',"interrupted":true}')
  end
  -- Not if an earlier release, whose reply may be lost, has recorded it: that has ended the hold, or kept it.
  local was_ended = is_member and string.find(call('GET', members .. token) or '', '"ended":', 1, true)
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

-- Stores the record of a run that did not begin.
local function record_run()
  record_outcome(request.record)
  return {outcome = 'done'}
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

-- Redlock: gives the hold the fencing token of the other nodes, or a larger one. If a majority has given the token
-- already it is only stored.
local function fence()
  local to, mine = tonumber(request.fencing), holds(token) and fencing_of(token)
  if mine and tonumber(mine) ~= to then
    -- The node may have been restarted since it granted the lock, and have an older counter.
    read_since_marker(request.node)
    mine = next_fencing(to, request.counter_life, request.is_established)
    local text = string.gsub(call('GET', members .. token), '"fencing":%d+', '"fencing":' .. mine, 1)
    call('SET', members .. token, text, 'PX', remaining_of(token))
  end
  return {outcome = mine and 'fenced' or 'gone', fencing = mine or nil}
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
  acquire = claim, renew = renew, release = release, revoke = revoke, delete = delete_foreign, record = record_run, fence = fence,
  raise = raise_fencing, freeze = freeze_lock, thaw = thaw_lock
}
local is_claim_at_node = request.operation == 'acquire' and request.node
if is_claim_at_node then
  read_since_marker(request.node)
end
local reply = operations[request.operation]()
if reply.err then
  return reply
end
if is_claim_at_node then
  local number = call('ZSCORE', queue, token)
  reply.node = {age = now - born, id = itself, is_new = sign == '', number = number and string.format('%.0f', number) or nil}
end
return cjson.encode(reply)
