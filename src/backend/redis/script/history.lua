-- The outcomes of a lock.

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
