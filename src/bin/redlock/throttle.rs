//! `redlock throttle`: at most once in a time, on all hosts. A lock that is left to its ttl.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use redlock_sync::Redlock;

use crate::arguments::Throttle;
use crate::busy::say_too_soon;
use crate::target::Target;
use crate::{End, environment, exec, failed, no_token};

/// Runs COMMAND in place of this process: no process stays to watch over it.
pub(crate) fn throttle(
    arguments: &Throttle,
    (name, command): (&OsStr, &[OsString]),
    redlock: &Redlock,
) -> End {
    let target = match Target::new(redlock.clone(), name, &arguments.kind()) {
        Ok(target) => target,
        Err(error) => return failed(&error),
    };
    let lock = match target.try_acquire(arguments.every.0) {
        Ok(Some(lock)) => lock,
        Ok(None) => {
            say_too_soon(&target, &arguments.every.to_string());
            return End::Code(arguments.conflict_exit_code);
        }
        Err(error) => return failed(&error),
    };
    let fence = match arguments.fence.then(|| lock.fencing_token()).transpose() {
        Ok(fence) => fence,
        // The event has not happened, so it may.
        Err(error) => return no_token(&error),
    };
    let slot = lock.slot();
    // Each end is the same for the next caller; the nodes note that nothing is under way.
    drop(lock.leak_for(arguments.every.0));
    let Some((program, arguments)) = command.split_first() else {
        return End::Code(0);
    };
    let mut command = Command::new(program);
    command.args(arguments);
    environment(&mut command, name, fence, slot);
    End::Code(exec(&mut command))
}
