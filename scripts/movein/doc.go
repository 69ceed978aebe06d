// Package movein tests `lapse import` and `lapse export` with the built program, real sources and
// real kills.
//
//   - An import is killed with SIGKILL at random and repeated until it is done: every key and job
//     has been delivered once, and none twice.
//   - The main job: 200,000 keys with TTLs move in while a subscriber that was written for Redis'
//     own events listens, workers acknowledge, and writers go on. Half of them then move on from
//     tasks in Redis to tasks on disk, by an export and an import. Each is heard of once, in time.
//   - 1 million keys are imported. The figures are how many a second, and how much longer commands
//     of the source take meanwhile.
//
// It needs the build tag `fault` and is run by `make fault`, the last one at full size by `make
// movein`. That of asynq is in scripts/compare, whose module links asynq.
package movein
