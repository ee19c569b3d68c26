use std::error::Error;
use std::fmt;

/// A value that was passed in and cannot work. The text has the value, the limit, and what to do.
#[derive(Clone, Debug)]
pub struct ConfigError(Box<str>);

impl ConfigError {
    pub(crate) fn new(text: impl Into<String>) -> ConfigError {
        ConfigError(text.into().into_boxed_str())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ConfigError {}
