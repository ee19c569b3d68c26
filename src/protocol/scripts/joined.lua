  return queued
end
