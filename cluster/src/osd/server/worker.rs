//! A thread of the server: an iothread that runs until it is told to stop.

use std::sync::mpsc;

use iothread::{IoThread, Remote, Signal};

use super::ServerError;

thread_local! {
    static STOP: Signal = Signal::new();
}

/// Stops with its handle at the latest, so that a server which cannot start leaves no thread.
pub(super) struct Worker {
    /// Gone once it was waited for.
    thread: Option<IoThread<()>>,
    remote: Remote,
    what: &'static str,
}

impl Worker {
    /// Runs `open` on a new thread and keeps what it returns until the end.
    pub(super) fn start<T: 'static>(
        what: &'static str,
        config: iothread::Config,
        open: impl FnOnce() -> Result<T, ServerError> + Send + 'static,
        close: impl FnOnce(T) + Send + 'static,
    ) -> Result<Worker, ServerError> {
        let (tell, told) = mpsc::channel();
        let thread = IoThread::spawn(config, move || async move {
            // Whoever starts the thread waits for this below.
            let opened = match open() {
                Ok(opened) => {
                    let _ = tell.send(Ok(()));
                    opened
                }
                Err(e) => {
                    let _ = tell.send(Err(e));
                    return;
                }
            };
            let stop = STOP.with(Signal::clone);
            stop.wait().await;
            close(opened);
            // What ended above lets go of its sockets in another turn.
            iothread::yield_now().await;
        })?;
        let worker = Worker {
            remote: thread.remote().clone(),
            thread: Some(thread),
            what,
        };
        told.recv().map_err(|_| ServerError::Panicked(what))??;
        Ok(worker)
    }

    pub(super) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Runs `f` on the thread and waits for what it returns.
    pub(super) fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, ServerError> {
        let (tell, told) = mpsc::channel();
        let job = move || {
            // Whoever asked waits below.
            let _ = tell.send(f());
        };
        self.remote.spawn(job).map_err(|_| ServerError::Stopped)?;
        told.recv().map_err(|_| ServerError::Stopped)
    }

    pub(super) fn stop(mut self) -> Result<(), ServerError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServerError> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        // It may have ended by itself.
        let _ = self.remote.spawn(|| STOP.with(Signal::raise));
        thread.join().map_err(|_| ServerError::Panicked(self.what))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "a thread of the server did not stop in order");
        }
    }
}
