# frozen_string_literal: true

# Two customers: one pays, the other one forgets to.

require "redis"
Dir[File.join(__dir__, "app", "*", "*.rb")].sort.each { |file| require file }

redis = Redis.new(url: ENV.fetch("REDIS_URL", "redis://127.0.0.1:7479"))
checkout = Checkout.new(redis, seconds_to_pay: 2)
expire_orders = ExpireOrdersJob.new(redis)

orders = [41, 42].map { |id| checkout.place(id) }
checkout.pay(orders.first)
expire_orders.perform while orders.last.unpaid?
orders.each { |order| puts "order #{order.id} is #{order.state}" }
