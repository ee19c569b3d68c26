//! stub
pub(crate) fn mutant(_: u32) -> bool {
    false
}
