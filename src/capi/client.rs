//! `redlock_t`.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Arc;

use super::keep_trying::answered;
use super::published::Published;
use super::*;
use crate::{Event, Options, Redlock, Tls};

/// Far more than any redlock can have.
const MAX_URLS: usize = 1 << 10;

/// `redlock_t`. A forked child can use it, whatever other threads were doing with it.
pub(super) struct Client {
    process: u32,
    settings: Published<Settings>,
}

#[derive(Clone)]
pub(super) struct Settings {
    redlock: Redlock,
    /// How observers end that may still be called.
    pub(super) ends: Vec<Arc<dyn Fn() + Send + Sync>>,
}

impl Settings {
    fn new(redlock: Redlock) -> Settings {
        Settings {
            redlock,
            ends: Vec::new(),
        }
    }

    fn options(&self) -> Options {
        self.redlock.options().clone()
    }

    fn set(self, option: c_int, value: u64) -> Result<Settings, CFailure> {
        let options = self.options();
        let (min, max) = options.get_retry_delay();
        let options = match option {
            REDLOCK_OPTION_WAIT_MS => options.wait(ms(value)),
            REDLOCK_OPTION_RETRY_DELAY_MIN_MS | REDLOCK_OPTION_RETRY_DELAY_MAX_MS => {
                let value = ms(value);
                // C sets them one after the other.
                match option {
                    REDLOCK_OPTION_RETRY_DELAY_MIN_MS => options.retry_delay(value, max.max(value)),
                    _ => options.retry_delay(min.min(value), value),
                }
            }
            REDLOCK_OPTION_NODE_TIMEOUT_MS => options.node_timeout(ms(value)),
            REDLOCK_OPTION_CONNECT_TIMEOUT_MS => options.connect_timeout(ms(value)),
            REDLOCK_OPTION_RESTART_GUARD_MS => options.restart_guard(ms(value)),
            REDLOCK_OPTION_MAX_EXTENSIONS => {
                let limit = u32::try_from(value).map_err(|_| {
                    let text =
                        format!("max_extensions is {value}: it must be at most {}", u32::MAX);
                    CFailure::config(text)
                })?;
                options.max_extensions(limit)
            }
            REDLOCK_OPTION_FAIR => match value {
                0 | 1 => options.fair(value == 1),
                _ => {
                    return Err(CFailure::config(format!(
                        "fair is {value}: it must be 0 or 1"
                    )));
                }
            },
            _ => return Err(CFailure::config(format!("there is no option {option}"))),
        };
        self.with(options)
    }

    fn labelled(self, label: &str) -> Result<Settings, CFailure> {
        let options = self.options().label(label);
        self.with(options)
    }

    fn prefixed(self, prefix: &str) -> Result<Settings, CFailure> {
        let options = self.options().prefix(prefix);
        self.with(options)
    }

    pub(super) fn observed(
        mut self,
        observer: impl Fn(&Event<'_>) + Send + Sync + 'static,
        end: impl Fn() + Send + Sync + 'static,
    ) -> Settings {
        self.ends.push(Arc::new(end));
        self.redlock = self.redlock.with_observer(observer);
        self
    }

    fn with(mut self, options: Options) -> Result<Settings, CFailure> {
        self.redlock = self.redlock.with_options(options)?;
        Ok(self)
    }
}

impl Client {
    fn redlock(&self) -> Redlock {
        self.settings.get().redlock.clone()
    }
}

pub(super) fn redlock_of(client: Option<&Client>) -> Result<Redlock, CFailure> {
    Ok(client.ok_or_else(|| CFailure::null("redlock"))?.redlock())
}

#[unsafe(no_mangle)]
extern "C" fn redlock_new(
    urls: *const *const c_char,
    n: usize,
    out: Option<&mut MaybeUninit<Option<Box<Client>>>>,
) -> c_int {
    make(out, || {
        if urls.is_null() {
            return Err(CFailure::null("urls"));
        }
        if n > MAX_URLS {
            return Err(CFailure::config(format!("{n} nodes are too many")));
        }
        let mut nodes = Vec::with_capacity(n);
        for i in 0..n {
            // SAFETY: the header demands n of them.
            let url = unsafe { *urls.add(i) };
            if url.is_null() {
                return Err(CFailure::null(&format!("the URL of node {i}")));
            }
            // SAFETY: not null, and the header demands a string.
            let url = unsafe { CStr::from_ptr(url) };
            let not_text = |_| CFailure::config(format!("the URL of node {i} is not UTF-8"));
            nodes.push(url.to_str().map_err(not_text)?);
        }
        Ok(Client {
            process: std::process::id(),
            settings: Published::new(Settings::new(Redlock::new(nodes)?)),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_set(client: Option<&Client>, option: c_int, value: u64) -> c_int {
    status(|| change(client, |settings| settings.set(option, value)))
}

#[unsafe(no_mangle)]
extern "C" fn redlock_set_tls(
    client: Option<&Client>,
    roots: *const c_char,
    roots_len: usize,
    chain: *const c_char,
    chain_len: usize,
    key: *const c_char,
    key_len: usize,
    server_name: *const c_char,
) -> c_int {
    status(|| {
        let mut tls = Tls::new();
        // SAFETY: the header demands it.
        let given = |data: *const c_char, len, what| unsafe { pem(data, len, what) };
        if !roots.is_null() {
            tls = tls.root_certificates(given(roots, roots_len, "roots")?);
        }
        tls = match (chain.is_null(), key.is_null()) {
            (true, true) => tls,
            (false, false) => {
                let chain = given(chain, chain_len, "chain")?;
                tls.client_certificate(chain, given(key, key_len, "key")?)
            }
            (true, false) => return Err(CFailure::null("chain")),
            (false, true) => return Err(CFailure::null("key")),
        };
        if !server_name.is_null() {
            // SAFETY: not null, and the header demands a string.
            let name = unsafe { CStr::from_ptr(server_name) };
            let not_text = |_| CFailure::config("server_name is not UTF-8");
            tls = tls.server_name(name.to_str().map_err(not_text)?);
        }
        change(client, |settings| {
            let options = settings.options().tls(tls);
            settings.with(options)
        })
    })
}

/// # Safety
///
/// `data` has `len` bytes.
unsafe fn pem<'a>(data: *const c_char, len: usize, what: &str) -> Result<&'a [u8], CFailure> {
    if len > MAX_LEN {
        return Err(CFailure::config(format!("{what} is {len} bytes long")));
    }
    // SAFETY: the caller vouches for the length, which a slice may have.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

pub(super) fn change(
    client: Option<&Client>,
    new: impl FnOnce(Settings) -> Result<Settings, CFailure>,
) -> Result<(), CFailure> {
    let client = client.ok_or_else(|| CFailure::null("redlock"))?;
    if client.process != std::process::id() {
        // A thread that was changing them at the fork does not exist here.
        let text = "this is a forked child: set options before the fork, or make a new redlock_t";
        return Err(CFailure::config(text));
    }
    let old = client.settings.change(|settings| new(settings.clone()))?;
    // This may be the last to use its connections, and wait for what they owe.
    drop(old);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn redlock_set_label(client: Option<&Client>, label: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the header demands it.
        let label = unsafe { text(label, "the label")? };
        change(client, |settings| settings.labelled(label))
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_set_prefix(client: Option<&Client>, prefix: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the header demands it.
        let prefix = unsafe { text(prefix, "the prefix")? };
        change(client, |settings| settings.prefixed(prefix))
    })
}

/// The text. Null is the empty text.
///
/// # Safety
///
/// `text` is null, or a string.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, CFailure> {
    if text.is_null() {
        return Ok("");
    }
    // SAFETY: the caller vouches for it.
    let text = unsafe { CStr::from_ptr(text) };
    let not_text = |_| CFailure::config(format!("{what} is not UTF-8"));
    text.to_str().map_err(not_text)
}

#[unsafe(no_mangle)]
extern "C" fn redlock_connect(client: Option<&Client>) -> c_int {
    status(|| {
        answered(redlock_of(client)?, Redlock::connect)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_free(client: Option<Box<Client>>) {
    status(|| {
        drop(client);
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_options_are_those_of_rust() {
        let settings = Settings::new(Redlock::new(["redis://a"]).unwrap());
        assert_eq!(settings.options(), Options::default());
    }

    #[test]
    fn the_bounds_of_the_pause_can_be_set_in_any_order() {
        const MIN: c_int = REDLOCK_OPTION_RETRY_DELAY_MIN_MS;
        const MAX: c_int = REDLOCK_OPTION_RETRY_DELAY_MAX_MS;
        let bounds = [0, 1, 49, 50, 51, 249, 250, 251, 1000];
        for min in bounds {
            for max in bounds.into_iter().filter(|max| *max >= min) {
                for order in [[(MIN, min), (MAX, max)], [(MAX, max), (MIN, min)]] {
                    let mut settings = Settings::new(Redlock::new(["redis://a"]).unwrap());
                    for (option, value) in order {
                        settings = settings.set(option, value).ok().unwrap();
                    }
                    let expected = Options::default().retry_delay(ms(min), ms(max));
                    assert_eq!(settings.options(), expected);
                }
            }
        }
    }
}
