-- The members of a lock: who holds it, until when, and in which slot.

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

-- The attempt by which a member was granted the lock last, of its record.
local function attempt_of(text)
  return tonumber(string.match(text, '"attempt":(%d+)'))
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

local function fencing_of(id)
  return string.match(call('GET', members .. id) or '', '"fencing":(%d+)')
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

-- Counts the holders of a lock that several may hold, and frees it if all of them have expired.
local function free_if_expired()
  if mode == 's' or mode == 'c' then
    count_members()
    if count == 0 then
      free_lock()
    end
  end
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
