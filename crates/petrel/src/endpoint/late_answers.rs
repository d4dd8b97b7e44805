//! Answers that the event loop sends after the handler has returned: the answers of tasks, and
//! failures for dropped responders.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use petrel_proto::RequestHandle;

use crate::error::Error;
use crate::inbox::WorkFlag;
use crate::msgbuf::MsgBuf;
use crate::sync::thread;

/// The failure of a call whose handler panicked.
pub(super) const HANDLER_PANICKED: &str = "the handler panicked";

/// The response to a request, or the failure.
pub(super) type Outcome = Result<MsgBuf, Error>;

/// Requests that wait for the event loop's answer.
pub(super) struct LateAnswers {
    /// Requests with a dropped responder, and why it was dropped.
    dropped: RefCell<Vec<(RequestHandle, &'static str)>>,
    /// Requests answered by tasks, oldest first.
    answered: RefCell<VecDeque<(RequestHandle, Outcome)>>,
    work_flag: WorkFlag,
}

impl LateAnswers {
    pub(super) fn new(work_flag: WorkFlag) -> Rc<Self> {
        Rc::new(Self { dropped: RefCell::default(), answered: RefCell::default(), work_flag })
    }

    /// Adds a request whose responder is being dropped.
    pub(super) fn push_dropped(&self, handle: RequestHandle) {
        let why = match thread::panicking() {
            true => HANDLER_PANICKED,
            false => "the handler dropped the request",
        };
        self.dropped.borrow_mut().push((handle, why));
        self.work_flag.raise();
    }

    pub(super) fn pop_dropped(&self) -> Option<(RequestHandle, &'static str)> {
        self.dropped.borrow_mut().pop()
    }

    /// Adds the answer of a task.
    pub(super) fn push(&self, handle: RequestHandle, outcome: Outcome) {
        self.answered.borrow_mut().push_back((handle, outcome));
        self.work_flag.raise();
    }

    pub(super) fn pop(&self) -> Option<(RequestHandle, Outcome)> {
        self.answered.borrow_mut().pop_front()
    }

    /// Returns the number of answers of tasks.
    pub(super) fn len(&self) -> usize {
        self.answered.borrow().len()
    }
}

impl fmt::Debug for LateAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dropped, answered) = (self.dropped.borrow().len(), self.answered.borrow().len());
        write!(f, "LateAnswers({dropped} dropped, {answered} answered)")
    }
}
