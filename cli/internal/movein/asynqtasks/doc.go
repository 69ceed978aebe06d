// Package asynqtasks makes tasks of what asynq (github.com/hibiken/asynq) has scheduled: of the
// tasks in the sets scheduled and retry of its queues.
//
// It reads the keys of asynq's Redis directly, of the layout that asynq has had since version
// 0.18, and decodes the few fields of a message that it needs. asynq itself would be a large
// dependency.
//
//	asynq:queues                 set of the queues' names
//	asynq:{<queue>}:scheduled    sorted set of ids, by Unix seconds; also :retry
//	asynq:{<queue>}:t:<id>       hash; field msg is a message of protocol buffers
//	asynq:servers                sorted set of running servers, by when they count as gone
//
// Tasks that are pending or active stay where they are: asynq's workers finish them.
package asynqtasks
