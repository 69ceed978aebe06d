// Package movein tests `lapse import asynq` against tasks that the real asynq has written, and
// reads what is left with asynq's own inspector. It is here because the module of the comparison
// links asynq, and the server does not.
package movein
