/**
 * Makes calls of values that are added, by natural batching: a call takes all values that were
 * added during the previous one. There is no timer, so that a single value does not wait.
 */
export class Gatherer<T> {
  private waiting: T[] = [];
  private calls = 0;
  private idlers: (() => void)[] = [];

  /** At most `most` calls at once, of at most `size` values each. */
  constructor(private readonly most: number, private readonly size: number, private readonly call: (batch: T[]) => Promise<void>) {}

  add(value: T): void {
    this.waiting.push(value);
    if (this.calls < this.most) {
      this.calls++;
      void this.work();
    }
  }

  /** Is fulfilled once no call is under way and no value waits. */
  idle(): Promise<void> {
    return this.calls === 0 ? Promise.resolve() : new Promise((resolve) => this.idlers.push(resolve));
  }

  private async work(): Promise<void> {
    await Promise.resolve(); // what is added at the same moment goes together
    while (this.waiting.length > 0) await this.call(this.waiting.splice(0, this.size));
    if (--this.calls === 0) this.idlers.splice(0).forEach((done) => done());
  }
}
