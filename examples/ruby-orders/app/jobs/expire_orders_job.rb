# frozen_string_literal: true

require "socket"

# Cancels what was not paid in time. It runs all the time, in any number of processes.
class ExpireOrdersJob
  STREAM = "expired:expired" # of the keys whose topic is "expired"
  GROUP = "shop"

  def initialize(redis)
    @redis = redis
    @redis.xgroup(:create, STREAM, GROUP, "$", mkstream: true)
  rescue Redis::CommandError => e
    raise unless e.message.start_with?("BUSYGROUP")
  end

  # Waits at most a second for keys that expire, and handles them.
  def perform
    read = @redis.xreadgroup(GROUP, Socket.gethostname, STREAM, ">", count: 100, block: 1000)
    read.fetch(STREAM, []).each do |id, entry|
      expire(Regexp.last_match(1).to_i) if entry["key"] =~ /\Aorder:(\d+)\z/
      # Without this, after a crash say, it comes again when its lease ends.
      @redis.xack(STREAM, GROUP, id)
    end
  end

  private

  def expire(id)
    order = Order.find_by(id: id)
    return unless order&.unpaid?

    order.cancel!
    puts "order #{id} was not paid in time"
  end
end
