//! The common part of all calls that post an operation.
//!
//! These functions are inlined into each C function, down to the call of the engine. Values that pass from one function
//! to another are otherwise written to memory in small pieces and read in larger ones, for which processors wait.

use std::borrow::Borrow;
use std::sync::Arc;

use isthmus_proto::{Completion, CompletionKind, Fence, OpError, Options};

use crate::error::Error;
use crate::live::Live;
use crate::trigger::{Job, When};

/// A call that posts an operation: the enabled endpoint, the operation's options, and the counter that it waits for, if
/// any.
pub(crate) struct Call<'a> {
    pub(crate) live: &'a Arc<Live>,
    pub(crate) options: Options,
    pub(crate) when: Option<When>,
}

impl Call<'_> {
    /// The options that apply to receives.
    #[inline(always)]
    pub(crate) fn receive_options(&self) -> Options {
        let Options { context, notify, .. } = self.options;
        Options { context, notify, ..Options::default() }
    }

    /// Posts by `post`, now or once the counter has reached its threshold.
    #[inline(always)]
    pub(crate) fn post<B, F>(self, kind: CompletionKind, buffers: &B, post: F) -> Result<isize, Error>
    where
        B: ToOwned + ?Sized,
        B::Owned: 'static,
        F: Fn(&Live, Options, &B) -> Result<(), Error> + Send + 'static,
    {
        let options =
            Options { fence: self.options.fence.max(self.live.orders().fence(kind)), ..self.options };
        match self.when {
            None => post(self.live, options, buffers)?,
            Some(when) => Self::defer(self.live, options, when, kind, buffers, post)?,
        }
        Ok(0)
    }

    #[cold]
    #[inline(never)]
    fn defer<B, F>(
        live: &Arc<Live>,
        options: Options,
        when: When,
        kind: CompletionKind,
        buffers: &B,
        post: F,
    ) -> Result<(), Error>
    where
        B: ToOwned + ?Sized,
        B::Owned: 'static,
        F: Fn(&Live, Options, &B) -> Result<(), Error> + Send + 'static,
    {
        if options.inject {
            return Err(Error::Unsupported("an injected operation that waits for a counter"));
        }
        let buffers = Lent(buffers.to_owned());
        let start = move |live: &Live| post(live, options, buffers.get().borrow());
        let job = Job::operation(live.clone(), options.context, kind, Box::new(start));
        live.board().defer(when, job);
        Ok(())
    }
}

/// Pointers that a program lends until the operation's end.
struct Lent<T>(T);

// SAFETY: the buffers are the library's until the operation completes, whichever thread posts it.
unsafe impl<T> Send for Lent<T> {}

impl<T> Lent<T> {
    fn get(&self) -> &T {
        &self.0
    }
}

/// Posts each of `parts` by `post`, as one operation with these options. `told` says that the last part notifies the
/// target, so it waits for the others.
pub(crate) fn post_parts<P>(
    live: &Live,
    kind: CompletionKind,
    options: Options,
    parts: &[P],
    told: bool,
    post: impl Fn(&P, Options, bool) -> Result<(), Error>,
) -> Result<(), Error> {
    let id = live.joints().enter(options, parts.len());
    for (index, part) in parts.iter().enumerate() {
        let last = index + 1 == parts.len();
        let fence = match index {
            _ if told && last => Fence::All,
            0 => options.fence,
            _ => Fence::None,
        };
        let options = Options { context: id, notify: true, fence, ..options };
        match post(part, options, last) {
            Ok(()) => {}
            Err(error) if index == 0 => {
                live.joints().withdraw(id);
                return Err(error);
            }
            // Some parts are under way: the whole fails when they have ended.
            Err(error) => live.deliver(Completion {
                error: Some(OpError::Protocol(error.to_string())),
                ..Completion::of(kind, id, true)
            }),
        }
    }
    Ok(())
}
